"""Gradients and sums as the contiguous vectors that kernels want."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from atomo.errors import CodecError

__all__ = ["add_flat", "draw_seed", "flat"]


def flat(gradient: Float[Tensor, "..."], codec: str) -> Float[Tensor, " n"]:
    """The entries of a gradient; a view where that is possible.

    Raises:
        CodecError: it has none.
    """
    if not gradient.numel():
        raise CodecError(f"{codec}: cannot encode an empty gradient")
    return gradient.detach().contiguous().view(-1)


def add_flat(
    out: Float[Tensor, "..."], codec: str, add: Callable[[Float[Tensor, " n"]], None]
) -> None:
    """Lets `add` work on the entries of `out`, in place.

    Raises:
        CodecError: `add` raised a ValueError: the payload does not fit.
    """
    entries = out.view(-1) if out.is_contiguous() else out.flatten()
    try:
        add(entries)
    except ValueError as error:
        raise CodecError(f"{codec}: {error}") from error
    if not out.is_contiguous():
        out.copy_(entries.view(out.shape))


def draw_seed(generator: Generator) -> int:
    """The seed of a kernel's counter-based random numbers."""
    return int(torch.randint(2**63 - 1, (), generator=generator, device=generator.device))
