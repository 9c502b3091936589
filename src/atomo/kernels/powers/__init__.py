"""Stochastic rounding to powers of two. The contract of all backends.

The entries of each tile t of 2048 draw from the words of key mix(seed ^ mix(t)) of
`random_words`. The upper 23 bits of an entry's word, added to its mantissa, carry into the
exponent as often as rounding up should happen; so it does for denormals, which go to 0 or 2^-126.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from jaxtyping import Float, Int32, UInt8

from atomo.kernels.backends import backend_for
from atomo.kernels.quantise import largest_and_counts
from atomo.kernels.rows import stacked
from atomo.kernels.sign import word_count

__all__ = ["TILE", "add_all_powers", "add_powers", "backend", "pack_powers"]

TILE: Final = 2048
INFINITE: Final = 255  # the exponent of infinity and NaN

backend = backend_for(__name__, "cpu", "reference", "cuda")


def pack_powers(
    values: Float[torch.Tensor, " n"], seed: int
) -> tuple[UInt8[torch.Tensor, " n"], Int32[torch.Tensor, " words"], float]:
    """Rounds contiguous values at random to powers of two, and packs exponents and signs.

    An exponent e stands for 2^(e - 127), and 0 for zero; denormals go to zero or 2^-126.

    Returns:
        The exponents, which mean nothing where a value is 2^127 or more; the signs, which lie as in
        `kernels/sign`; and the largest magnitude: NaN or infinity where one is.
    """
    return backend(values).pack_powers(values, seed)


def add_powers(
    symbols: UInt8[torch.Tensor, " n"],
    signs: Int32[torch.Tensor, " words"],
    out: Float[torch.Tensor, " n"],
    scale: float,
) -> None:
    """Adds scale * sign * 2^(symbol - 127) to each entry, in place; nothing where it is 0.

    The signs lie as in `kernels/sign`.

    Raises:
        ValueError: the sizes differ, or a symbol stands for infinity; `out` is unchanged.
    """
    add_all_powers([symbols], [signs], out, [scale])


def add_all_powers(
    symbols: Sequence[UInt8[torch.Tensor, " _"]],
    signs: Sequence[Int32[torch.Tensor, " _"]],
    out: Float[torch.Tensor, " n"],
    scales: Sequence[float],
) -> None:
    """Adds several frames, at least one, with the bits of one `add_powers` after another.

    A backend has symbols and signs as rows on the device of `out`.

    Raises:
        ValueError: the sizes differ, or a symbol stands for infinity; `out` is unchanged.
    """
    for exponents, words in zip(symbols, signs, strict=True):
        if len(exponents) != len(out) or len(words) != word_count(len(out)):
            raise ValueError(f"{len(exponents)} exponents and {len(words)} words of signs")
    rows = stacked(symbols, out.device)
    largest, _ = largest_and_counts(rows, INFINITE)
    if largest == INFINITE:
        raise ValueError(f"exponents up to {largest}; below {INFINITE} is expected")
    backend(out).add_all_powers(rows, stacked(signs, out.device), out, scales)
