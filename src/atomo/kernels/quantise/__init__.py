"""Stochastic rounding to a few levels, several to a byte. The contract of all backends.

Entries are split into tiles of `digits` rows of 512 (a last tile has shorter rows), and byte j of a
tile is sum_d (level of entry j of row d + base // 2) * base^d. A byte that cannot hold its levels
is base^digits, and its levels are the next entries of `escapes`.

The entries of tile t draw from the words of key mix(seed ^ mix(t)) of `random_words`: the upper
24 bits of the word of an entry's place in its tile are its uniform number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from jaxtyping import Float, Int16, UInt8

from atomo.kernels.backends import backend_for
from atomo.kernels.rows import joined, stacked

__all__ = [
    "COLUMNS",
    "EUCLIDEAN",
    "FORMS",
    "GIVEN",
    "LARGEST",
    "LevelForm",
    "add_all_levels",
    "add_levels",
    "backend",
    "largest_and_counts",
    "moments",
    "quantise",
    "room_for_escapes",
    "symbol_count",
]

COLUMNS: Final = 512
GIVEN, EUCLIDEAN, LARGEST = 0, 1, 2
# Norms between which no product of float32 leaves its range or precision; all others are lifted.
TINY, HUGE = 1e-30, 1e30
LIFT_TINY, LIFT_HUGE = 2.0**100, 2.0**-60

backend = backend_for(__name__, "cpu", "reference", "cuda")


@dataclass(frozen=True)
class LevelForm:
    """A packing of levels into bytes."""

    base: int  # odd; levels from -(base // 2) to base // 2 fit
    digits: int

    @property
    def escape(self) -> int:
        """The byte that stands for levels out of reach."""
        return int(self.base**self.digits)

    @property
    def tile(self) -> int:
        """Entries that are packed together."""
        return self.digits * COLUMNS


FORMS: Final = (LevelForm(3, 5), LevelForm(15, 2), LevelForm(255, 1))


def symbol_count(entries: int, form: LevelForm) -> int:
    """Returns the number of bytes for `entries` levels."""
    tiles, remainder = divmod(entries, form.tile)
    return tiles * COLUMNS + -(-remainder // form.digits)


def room_for_escapes(entries: int, highest: int, form: LevelForm) -> int:
    """Returns the largest number of levels that may escape: few in a form that is not the last,
    else the number of levels.

    A level is beyond the last form only where `highest` is.
    """
    if form != FORMS[-1]:
        return entries // 64 + 64
    return entries if highest > form.base // 2 else 0


def quantise(
    values: Float[torch.Tensor, " n"],
    norms: Float[torch.Tensor, " buckets"],
    bucket: int,
    kind: int,
    highest: int,
    form: LevelForm,
    seed: int,
) -> tuple[UInt8[torch.Tensor, " bytes"], Int16[torch.Tensor, " escaped"]] | None:
    """Rounds sign * |value| * most / norm at random to one of its two neighbouring integers.

    Its expectation is the number itself wherever |value| is no more than the norm; above, it is
    `highest`. A bucket of norm 0 is all zero.

    Args:
        values: contiguous, at least one.
        norms: one for every `bucket` values. Filled here unless `kind` is GIVEN.
        bucket: at least 1.
        kind: GIVEN, EUCLIDEAN or LARGEST.
        highest: the highest level, 1 to 255.
        form: too narrow a form costs two bytes for every level that it cannot hold.
        seed: of the counter-based random numbers.

    Returns:
        The packed levels, and those that a byte could not hold; None if more of these than
        `room_for_escapes` came up.

    Raises:
        ValueError: a norm is not finite.
    """
    return backend(values).quantise(values, norms, bucket, kind, highest, form, seed)


def add_levels(
    symbols: UInt8[torch.Tensor, " bytes"],
    escapes: Int16[torch.Tensor, " escaped"],
    norms: Float[torch.Tensor, " buckets"],
    bucket: int,
    highest: int,
    form: LevelForm,
    out: Float[torch.Tensor, " n"],
    scale: float,
) -> None:
    """Adds scale * norm * level / most for each level, in place.

    Raises:
        ValueError: symbols or escapes are no result of `quantise`; `out` is unchanged.
    """
    add_all_levels([symbols], [escapes], [norms], bucket, highest, form, out, scale)


def add_all_levels(
    symbols: Sequence[UInt8[torch.Tensor, " _"]],
    escapes: Sequence[Int16[torch.Tensor, " _"]],
    norms: Sequence[Float[torch.Tensor, " _"]],
    bucket: int,
    highest: int,
    form: LevelForm,
    out: Float[torch.Tensor, " n"],
    scale: float,
) -> None:
    """Adds several frames, at least one, with the bits of one `add_levels` after another.

    A backend has symbols and norms as rows, and all tensors on the device of `out`.

    Raises:
        ValueError: symbols or escapes of a frame are no result of `quantise`; `out` is unchanged.
    """
    expected, buckets = symbol_count(len(out), form), -(-len(out) // bucket)
    for codes, units in zip(symbols, norms, strict=True):
        if len(codes) != expected or len(units) != buckets:
            raise ValueError(f"{len(codes)} symbols and {len(units)} norms for {len(out)} entries")
    rows = stacked(symbols, out.device)
    largest, counts = backend(out).largest_and_counts(rows, form.escape)
    if largest > form.escape:
        raise ValueError(f"symbols up to {largest}; at most {form.escape}")
    for count, escaped in zip(counts, escapes, strict=True):  # before they are moved: on the host
        if count * form.digits != len(escaped) or bool((escaped.int().abs() > highest).any()):
            raise ValueError(
                f"{len(escaped)} levels, or levels above {highest}, for {count} symbols"
            )
    far, units = joined(escapes, out.device), stacked(norms, out.device)
    backend(out).add_all_levels(rows, far, units, bucket, highest, form, out, scale)


def largest_and_counts(
    symbols: UInt8[torch.Tensor, "frames bytes"], code: int
) -> tuple[int, list[int]]:
    """Returns the largest symbol, 0 if there are none, and the number of symbols equal to `code` in
    each row.
    """
    return backend(symbols).largest_and_counts(symbols, code)


def moments(values: Float[torch.Tensor, " n"]) -> tuple[float, float]:
    """Returns the largest magnitude and the sum of squares, not finite if an entry is not."""
    return backend(values).moments(values)
