"""Selection of large entries. The contract of all backends.

Magnitudes are compared as the integers that their bits are, which orders finite numbers like their
values and puts infinity and NaN above them all. Vectors are contiguous float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float64, Int32, Int64

from atomo.core.devices import to_device
from atomo.kernels.backends import backend_for

__all__ = [
    "INFINITY",
    "Bounds",
    "above",
    "adapted",
    "add_at",
    "add_sets",
    "backend",
    "bits_of",
    "by_sample",
    "check_finite",
    "chunk_sums",
    "first_largest",
    "kth_largest",
    "largest",
    "largest_bits",
    "magnitudes",
    "scaled_bits",
]

INFINITY: Final = 0x7F800000

backend = backend_for(__name__, "cpu", "reference", "cuda")


class Bounds(NamedTuple):
    """Bounds on the number of entries that a threshold selects, and how it is lowered."""

    wanted: int
    lower: float
    """While fewer than this times `wanted` reach the threshold, it is multiplied by this."""
    upper: float
    """The multiple of `wanted` beyond which only the `wanted` largest are selected."""
    iterations: int
    """The most times that the threshold is lowered."""


def bits_of(value: float) -> int:
    """Returns the least bits, at least 1, of a magnitude that is not below `value`: zero is never
    above.
    """
    if value > float(np.finfo(np.float32).max):
        return INFINITY
    nearest = np.float32(value)
    if float(nearest) < value:
        nearest = np.nextafter(nearest, np.float32(np.inf))
    return max(1, int(nearest.view(np.int32)))


def above(
    values: Float[torch.Tensor, " n"],
    added: Float[torch.Tensor, " n"] | None,
    low: int,
    clear: bool = False,
) -> tuple[Int64[torch.Tensor, " k"], Float[torch.Tensor, " k"]]:
    """Returns the increasing indices and the values of the entries with magnitude bits >= `low`.

    Args:
        values: changed in place if `added` is given or `clear` is True.
        added: added to `values` first.
        low: at least 1.
        clear: True makes the selected entries zero in `values`.

    Raises:
        ValueError: NaN or infinity was found.
    """
    return backend(values).above(values, added, low, clear)


def check_finite(values: Float[torch.Tensor, " n"]) -> None:
    """Raises ValueError where there is NaN or infinity."""
    if largest_bits(values) >= INFINITY:
        raise ValueError("NaN or infinity")


def largest_bits(values: Float[torch.Tensor, " n"]) -> int:
    """Returns the bits of the largest magnitude, 0 for no entries."""
    return backend(values).largest_bits(values)


def magnitudes(
    values: Float[torch.Tensor, " n"],
    added: Float[torch.Tensor, " n"] | None,
    positions: Int64[torch.Tensor, " s"],
) -> Int32[torch.Tensor, " s"]:
    """Returns the bits of the magnitudes at `positions`, of the sum if `added` is given."""
    return backend(values).magnitudes(values, added, to_device(positions, values.device))


def kth_largest(values: Int32[torch.Tensor, " n"], k: int) -> tuple[int, int]:
    """Returns the bits of the k-th largest magnitude, and the number above it; 1 <= k <= n."""
    return backend(values).kth_largest(values, k)


def largest(
    values: Float[torch.Tensor, " n"], added: Float[torch.Tensor, " n"] | None, k: int
) -> tuple[Int64[torch.Tensor, " k"], Float[torch.Tensor, " k"]]:
    """Returns the k entries of largest magnitude, or all non-zero entries if these are fewer.

    Of equal entries the first count. `values` becomes the sum with `added`.


    Raises:
        ValueError: NaN or infinity was found.
    """
    return backend(values).largest(values, added, k)


def first_largest(
    indices: Int64[torch.Tensor, " c"], entries: Float[torch.Tensor, " c"], k: int
) -> tuple[Int64[torch.Tensor, " k"], Float[torch.Tensor, " k"]]:
    """Returns the k largest entries; of those equal to the smallest, the first."""
    return backend(entries).first_largest(indices, entries, k)


def by_sample(
    values: Float[torch.Tensor, " n"],
    added: Float[torch.Tensor, " n"] | None,
    sample: range,
    rank: int,
    bounds: Bounds,
) -> tuple[Int64[torch.Tensor, " k"], Float[torch.Tensor, " k"]]:
    """Returns the entries that an adapted threshold selects, with a sample for the first one.

    Args:
        values: changed in place if `added` is given.
        added: added to `values` first.
        sample: the places of the sample, one at least.
        rank: of the first threshold among the magnitudes of the sample, the largest is 1.
        bounds: the numbers of entries that are too few and too many; see `adapted`.

    Raises:
        ValueError: NaN or infinity was found.
    """
    return backend(values).by_sample(values, added, sample, rank, bounds)


def adapted(
    above: Callable[[int], tuple[torch.Tensor, torch.Tensor]], low: int, bounds: Bounds
) -> tuple[Int64[torch.Tensor, " k"], Float[torch.Tensor, " k"]]:
    """Lowers a threshold that finds too few entries; of too many it selects the largest.

    Args:
        above: returns the entries with magnitude bits that are not below a threshold.
        low: the first threshold, at least 1.
        bounds: the numbers that are too few and too many.
    """
    indices, values = above(low)
    for _ in range(bounds.iterations):
        if len(values) >= bounds.lower * bounds.wanted or low <= 1:
            break
        low = max(1, scaled_bits(low, bounds.lower))
        indices, values = above(low)
    if len(values) > bounds.upper * bounds.wanted:
        return first_largest(indices, values, bounds.wanted)
    return indices, values


def scaled_bits(bits: int, factor: float) -> int:
    """Returns the bits of the magnitude with the bits `bits`, times a factor."""
    value = np.int32(bits).view(np.float32)
    return int((value * np.float32(factor)).view(np.int32))


def add_at(
    out: Float[torch.Tensor, " n"],
    indices: Int64[torch.Tensor, " k"],
    values: Float[torch.Tensor, " k"],
    scale: float,
) -> None:
    """Computes out[indices] += scale * values, in place; each index is below n.

    The values of a repeated index are added in their order on the CPU, and in any order elsewhere.

    """
    there, added = to_device(indices, out.device), to_device(values, out.device)
    backend(out).add_at(out, there, added.contiguous(), scale)


def add_sets(
    out: Float[torch.Tensor, " n"],
    indices: Int64[torch.Tensor, " total"],
    values: Float[torch.Tensor, " total"],
    counts: Sequence[int],
    scale: float,
) -> None:
    """Computes out[indices] += scale * values for several sets, one after the other, on every
    device.

    Args:
        out: contiguous.
        indices: of the sets one after the other; increasing within a set, below n.
        values: one for each index.
        counts: the size of each set.
        scale: of all values.
    """
    there, added = to_device(indices, out.device), to_device(values, out.device)
    backend(out).add_sets(out, there, added.contiguous(), counts, scale)


def chunk_sums(
    values: Float[torch.Tensor, " n"], added: Float[torch.Tensor, " n"] | None, chunk: int
) -> Float64[torch.Tensor, " chunks"]:
    """Computes the L1 norm of each run of `chunk` entries; adds `added` to `values` first."""
    return backend(values).chunk_sums(values, added, chunk)
