"""Gradients and sums as the contiguous vectors that kernels want."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float

from atomo.codecs.checks import as_codec_error
from atomo.errors import CodecError

__all__ = ["adding_to", "flat"]


def flat(gradient: Float[torch.Tensor, "..."], codec: str) -> Float[torch.Tensor, " n"]:
    """Returns the entries of a gradient as one contiguous vector; a view where that is possible.

    Raises:
        CodecError: the gradient has no entries.
    """
    if not gradient.numel():
        raise CodecError(f"{codec}: cannot encode an empty gradient, shape {tuple(gradient.shape)}")
    return gradient.detach().contiguous().view(-1)


@contextmanager
def adding_to(out: Float[torch.Tensor, "..."], codec: str) -> Iterator[Float[torch.Tensor, " n"]]:
    """Gives a block the entries of `out` as a vector; changes of the vector are changes of `out`.

    Raises:
        CodecError: a ValueError was raised within: the payload does not fit.
    """
    entries = out.view(-1) if out.is_contiguous() else out.flatten()
    with as_codec_error(codec):
        yield entries
    if not out.is_contiguous():
        out.copy_(entries.view(out.shape))
