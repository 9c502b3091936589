"""Natural compression: each entry rounded at random to one of the two nearest powers of two.

For 2^e <= |x| < 2^(e+1) it is the upper power with probability (|x| - 2^e) / 2^e. That is one look
at the bits of a float32: its mantissa against random bits.

Law: unbiased, with a variance of at most ||g||^2 / 8. Bits: 9 an entry packed, 3.9 when coded.

Horvath et al., "Natural Compression for Distributed Deep Learning", MSML 2022.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float, Int32

from atomo.codecs.base import Codec, Field, Granularity, Law
from atomo.codecs.checks import check_known
from atomo.codecs.flat import adding_to, flat
from atomo.codecs.levels.payload import CODINGS
from atomo.codecs.seeds import draw_seed
from atomo.errors import CodecError
from atomo.kernels import entropy, powers, sign

__all__ = ["Natural"]

SMALL, SHIFT = 2.0**-60, 80  # gradients below SMALL travel times 2^SHIFT, clear of denormals
LARGE = 2.0**127  # the largest power of two in float32


@dataclass(frozen=True)
class Powers:
    """sign * 2^(exponent - 127 - shift); an exponent of 0 stands for 0."""

    words: Int32[torch.Tensor, " words"]
    """The exponents, a byte each, after `kernels.entropy.compress`."""
    signs: Int32[torch.Tensor, " signs"]
    shift: Int32[torch.Tensor, " one"]
    """0 or 80."""


@final
@dataclass(frozen=True)
class Natural(Codec[Powers]):
    """A sign and an exponent for each entry.

    Entries more than 2^146 times smaller than the largest become 0 or the smallest power that a
    float32 can normalise: still unbiased, with a variance that no longer counts.

    Raises:
        ConfigError: a setting is out of range.
    """

    coding: str = "entropy"
    """"entropy": a Huffman code for the exponents; "packed": 9 bits an entry."""

    id: ClassVar[str] = "natural"
    default_payload_type: ClassVar[type[Powers]] = Powers
    batch_decodes_on_gpu: ClassVar[bool] = True
    default_granularity: ClassVar[Granularity] = Granularity.ENTRIES
    near_lossless: ClassVar[bool] = True
    accepts_half: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_known(self.id, "coding", self.coding, CODINGS)

    @property
    def laws(self) -> frozenset[Law]:
        return frozenset({Law.UNBIASED})

    @property
    def error_bound(self) -> float:
        # Of x = 2^e (1 + p) the upper power has the probability p, and p (1 - p) / (1 + p)^2 is
        # largest at p = 1/3.
        return 1 / 8

    def encode(self, gradient: Float[torch.Tensor, "..."], generator: torch.Generator) -> Powers:
        values, seed, shift = flat(gradient, self.id), draw_seed(generator), 0
        exponents, signs, largest = powers.pack_powers(values, seed)
        if not largest < LARGE:  # NaN included
            raise CodecError(f"natural: the gradient holds {largest:g}; at most {LARGE:g}")
        if 0 < largest < SMALL:
            shift = SHIFT
            exponents, *_ = powers.pack_powers(values.float() * 2.0**SHIFT, seed)
        words = entropy.compress(exponents, self.coding == "entropy")
        return Powers(words, signs, torch.tensor([shift], dtype=torch.int32))

    def fields(self, shape: torch.Size) -> tuple[Field, ...]:
        entries = shape.numel()
        return (
            Field(torch.int32, (entries // 4 + 1 + entropy.OVERHEAD,)),
            Field(torch.int32, (sign.word_count(entries),)),
            Field(torch.int32, (1,)),
        )

    def add_decoded(
        self, payload: Powers, out: Float[torch.Tensor, "..."], scale: float = 1.0
    ) -> None:
        self.add_all([payload], out, scale)

    def add_all(
        self, payloads: Sequence[Powers], out: Float[torch.Tensor, "..."], scale: float = 1.0
    ) -> None:
        if payloads:
            with adding_to(out, self.id) as entries:
                add_powers(payloads, entries, scale)


def add_powers(payloads: Sequence[Powers], out: Float[torch.Tensor, " n"], scale: float) -> None:
    """Adds `scale` times the decoded entries of each to `out`, one after the other, in place.

    Raises:
        ValueError: a payload does not fit; `out` is unchanged.
    """
    exponents = entropy.decompress_all(
        [payload.words for payload in payloads], len(out), out.device
    )
    # The encoder scaled the values by 2^shift, exactly; `scale` divides by it, exactly too.
    scales = [math.ldexp(scale, -shift_of(payload)) for payload in payloads]
    powers.add_all_powers(exponents, [payload.signs for payload in payloads], out, scales)


def shift_of(payload: Powers) -> int:
    """Returns the exponent of the power of two that scaled a payload up."""
    shifts: list[int] = payload.shift.tolist()
    if shifts not in ([0], [SHIFT]):
        raise ValueError(f"shift {shifts[:4]}; 0 or {SHIFT} is expected")
    return shifts[0]
