"""One bit an entry. The contract of all backends.

The entries go by tiles of 32 rows of 64 (a last tile has shorter rows): bit i of word j is the IEEE
sign bit of entry j of row i, so that -0.0 counts as negative and 0.0 as positive.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from jaxtyping import Float, Int32

from atomo.core.devices import to_device
from atomo.kernels.backends import backend_for
from atomo.kernels.rows import stacked

__all__ = [
    "TILE",
    "WIDTH",
    "add_all_row_signs",
    "add_all_signs",
    "add_pack_means",
    "add_pack_sum",
    "add_row_signs",
    "add_signs",
    "backend",
    "pack_signs",
    "word_count",
]

WIDTH: Final = 64
TILE: Final = 32 * WIDTH

backend = backend_for(__name__, "cpu", "reference", "cuda")


def word_count(entries: int) -> int:
    """Returns the number of 32-bit words for the signs of a number of entries."""
    return (entries + 31) // 32


def pack_signs(values: Float[torch.Tensor, " n"]) -> tuple[Int32[torch.Tensor, " words"], float]:
    """Packs the signs of contiguous values, and returns the largest magnitude: NaN or infinity if
    there is one.
    """
    return backend(values).pack_signs(values)


def add_pack_sum(
    values: Float[torch.Tensor, " n"], added: Float[torch.Tensor, " n"] | None = None
) -> tuple[Int32[torch.Tensor, " words"], float, float, int]:
    """Packs the signs, and returns the sums of the entries without and with a sign bit, and the
    number without.

    Args:
        values: contiguous.
        added: contiguous; added to `values` first, in place.

    Returns:
        Sums that are not finite where an entry is not.
    """
    return backend(values).add_pack_sum(values, added)


def add_signs(
    words: Int32[torch.Tensor, " words"],
    positive: float,
    negative: float,
    out: Float[torch.Tensor, " n"],
) -> None:
    """Adds `positive` where the sign bit is 0 and `negative` where it is 1, in place.

    Raises:
        ValueError: the words are not as many as `out` needs; it is unchanged.
    """
    check_words(words, out)
    backend(out).add_signs(to_device(words, out.device), positive, negative, out)


def add_all_signs(
    words: Sequence[Int32[torch.Tensor, " _"]],
    units: Sequence[float],
    out: Float[torch.Tensor, " n"],
) -> None:
    """Adds several frames, at least one, with the bits of one `add_signs` of a unit and its
    negative after another.

    A backend has the words as rows on the device of `out`.

    Raises:
        ValueError: the words of a frame are not as many as `out` needs; it is unchanged.
    """
    for frame in words:
        check_words(frame, out)
    backend(out).add_all_signs(stacked(words, out.device), units, out)


def check_words(words: Int32[torch.Tensor, " words"], out: Float[torch.Tensor, " n"]) -> None:
    if len(words) != word_count(len(out)):
        raise ValueError(f"{len(words)} words of signs for {len(out)} entries")


def add_pack_means(
    values: Float[torch.Tensor, " n"], added: Float[torch.Tensor, " n"] | None, row: int
) -> tuple[Int32[torch.Tensor, " words"], Float[torch.Tensor, " means"]]:
    """Packs the signs, and returns the means of the entries without and with a sign bit, run by
    run.

    Args:
        values: contiguous.
        added: contiguous; added to `values` first, in place.
        row: entries in a run; the last one may be shorter.

    Returns:
        The words, and two means a run: 0 where it has no such entry, not finite where one is not.
    """
    return backend(values).add_pack_means(values, added, row)


def add_row_signs(
    words: Int32[torch.Tensor, " words"],
    means: Float[torch.Tensor, " means"],
    row: int,
    scale: float,
    out: Float[torch.Tensor, " n"],
) -> None:
    """Adds to each entry `scale` times the mean of its sign and run, as `add_pack_means` computes
    it.

    Raises:
        ValueError: words or means are not as many as `out` needs; it is unchanged.
    """
    add_all_row_signs([words], [means], row, scale, out)


def add_all_row_signs(
    words: Sequence[Int32[torch.Tensor, " _"]],
    means: Sequence[Float[torch.Tensor, " _"]],
    row: int,
    scale: float,
    out: Float[torch.Tensor, " n"],
) -> None:
    """Adds several frames, at least one, with the bits of one `add_row_signs` after another.

    A backend has words and means as rows on the device of `out`.

    Raises:
        ValueError: those of a frame are not as many as `out` needs; it is unchanged.
    """
    for frame, own in zip(words, means, strict=True):
        if len(frame) != word_count(len(out)) or len(own) != 2 * -(-len(out) // row):
            raise ValueError(f"{len(frame)} words and {len(own)} means for {len(out)} entries")
    frame, own = stacked(words, out.device), stacked(means, out.device)
    backend(out).add_all_row_signs(frame, own, row, scale, out)
