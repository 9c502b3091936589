"""DGC's momentum in the pass that selects. The contract of all backends.

Each vector is read once and written once: u = m u + g and v = v + u, or Nesterov's u = m (u + g)
and v = v + u + g, where every product and every sum is rounded by itself. Magnitudes are compared
as in `kernels.selection`.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int32, Int64

from atomo.core.devices import to_device
from atomo.kernels.backends import backend_for
from atomo.kernels.selection import Bounds

__all__ = ["backend", "grow_above", "grow_by_sample", "magnitudes"]

backend = backend_for(__name__, "cpu", "reference", "cuda")


def grow_above(
    values: Float[torch.Tensor, " n"],
    velocity: Float[torch.Tensor, " n"],
    gradient: Float[torch.Tensor, " n"],
    factor: float,
    nesterov: bool,
    low: int,
) -> tuple[Int64[torch.Tensor, " k"], Float[torch.Tensor, " k"]]:
    """Applies the momentum, and returns the increasing indices and the values of the entries of
    `values` with bits >= `low`.

    Args:
        values: v, contiguous; changed in place.
        velocity: u, contiguous; changed in place.
        gradient: g, contiguous.
        factor: m.
        nesterov: whether u and v are Nesterov's.
        low: bits of a magnitude, at least 1.

    Raises:
        ValueError: NaN or infinity was found.
    """
    return backend(values).grow_above(values, velocity, gradient, factor, nesterov, low)


def grow_by_sample(
    values: Float[torch.Tensor, " n"],
    velocity: Float[torch.Tensor, " n"],
    gradient: Float[torch.Tensor, " n"],
    factor: float,
    nesterov: bool,
    sample: range,
    rank: int,
    bounds: Bounds,
) -> tuple[Int64[torch.Tensor, " k"], Float[torch.Tensor, " k"]]:
    """Applies the momentum, and returns the entries of `values` that an adapted threshold selects.

    The first threshold is a magnitude of a sample; `kernels.selection.adapted` adapts it.

    Args:
        values: as in `grow_above`, and so are the next four.
        velocity: u.
        gradient: g.
        factor: m.
        nesterov: whether u and v are Nesterov's.
        sample: the places of the sample, one at least.
        rank: of the threshold among the magnitudes of the sample, the largest is 1.
        bounds: the numbers of entries that are too few and too many.

    Raises:
        ValueError: NaN or infinity was found.
    """
    arguments = values, velocity, gradient, factor, nesterov, sample, rank, bounds
    return backend(values).grow_by_sample(*arguments)


def magnitudes(
    values: Float[torch.Tensor, " n"],
    velocity: Float[torch.Tensor, " n"],
    gradient: Float[torch.Tensor, " n"],
    factor: float,
    nesterov: bool,
    positions: Int64[torch.Tensor, " s"],
) -> Int32[torch.Tensor, " s"]:
    """Returns the magnitude bits that `grow_above` would give `values` at some positions."""
    there = to_device(positions, values.device)
    return backend(values).magnitudes(values, velocity, gradient, factor, nesterov, there)
