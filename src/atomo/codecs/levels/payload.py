"""Payload of `qsgd` and `terngrad`: signed levels, several to a byte, and the norms of buckets.

How many levels fit a byte depends on how large they are: `kernels.quantise.FORMS` are bytes of so
many digits of some base. A form with digits for nearly all levels of a gradient is small, and
the few levels that it cannot hold travel apart, as escapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import torch
from jaxtyping import Float, Int16, Int32, UInt8

from atomo.codecs.base import Field
from atomo.codecs.cost import DecodeCost
from atomo.codecs.seeds import draw_seed
from atomo.kernels import entropy, quantise

__all__ = [
    "CODINGS",
    "TAIL",
    "Levels",
    "add_level_payloads",
    "level_cost",
    "level_fields",
    "to_levels",
]

CODINGS: Final = ("entropy", "packed")
CHECKED: Final = 12  # bytes that an escaped level takes while it is checked
TAIL: Final = 3.2  # standard deviations; beyond it a level may cost more than in a wider form


@dataclass(frozen=True)
class Levels:
    """Signed levels, several to a byte, of buckets with a norm each."""

    norms: Float[torch.Tensor, " buckets"]
    form: UInt8[torch.Tensor, " one"]
    """The index in `kernels.quantise.FORMS` of the packing of the levels."""
    words: Int32[torch.Tensor, " words"]
    """The packed levels after `kernels.entropy.compress`."""
    escapes: Int16[torch.Tensor, " escaped"]
    """The levels of those bytes that could not hold theirs."""


def to_levels(
    values: Float[torch.Tensor, " n"],
    norms: Float[torch.Tensor, " buckets"],
    bucket: int,
    kind: int,
    highest: int,
    spread: float,
    coding: str,
    generator: torch.Generator,
) -> Levels:
    """Rounds and packs, in the first form in which few levels are expected to be out of reach.

    Args:
        values: at least one.
        norms: given if `kind` is GIVEN, else filled here.
        bucket: values to a norm.
        kind: GIVEN, EUCLIDEAN or LARGEST of `kernels.quantise`.
        highest: the highest level.
        spread: the standard deviation expected of value / norm.
        coding: one of CODINGS.
        generator: the source of the kernel's seed.

    Raises:
        ValueError: a norm is not finite.
    """
    seed = draw_seed(generator)
    # Forms come from the smallest to the largest; the next is tried where one has too many escapes,
    # with the same seed, so that levels do not depend on how they are packed.
    for number, form in enumerate(quantise.FORMS):
        if form is quantise.FORMS[-1] or form.base // 2 >= min(highest, TAIL * spread * highest):
            coded = quantise.quantise(values, norms, bucket, kind, highest, form, seed)
            if coded is not None:
                symbols, escapes = coded
                words = entropy.compress(symbols, coding == "entropy", form.base == 3)
                return Levels(norms, torch.tensor([number], dtype=torch.uint8), words, escapes)
    raise AssertionError("the last form holds any levels")


def level_fields(entries: int, buckets: int) -> tuple[Field, ...]:
    """Returns the bounds of `Levels` for a number of entries and of norms."""
    words = entries // 4 + 1 + entropy.OVERHEAD
    return (
        Field(torch.float32, (buckets,)),
        Field(torch.uint8, (1,)),
        Field(torch.int32, (words,)),
        Field(torch.int16, (entries + quantise.FORMS[0].digits,)),
    )


def level_cost(payload: Levels) -> DecodeCost:
    """Returns the cost of checking the escaped levels, above the usual cost."""
    return DecodeCost(len(payload.escapes), CHECKED * len(payload.escapes))


def add_level_payloads(
    payloads: Sequence[Levels],
    bucket: int,
    highest: int,
    out: Float[torch.Tensor, " n"],
    scale: float,
) -> None:
    """Adds `scale` times the decoded entries of each to `out`, one after the other, in place.

    Raises:
        ValueError: a payload does not fit; of one alone `out` is unchanged then.
    """
    # Neighbours in one form are added in one pass, in the order of all.
    for number, same in groupby(payloads, form_of):
        form, levels = quantise.FORMS[number], [*same]
        size = quantise.symbol_count(len(out), form)
        symbols = entropy.decompress_all([frame.words for frame in levels], size, out.device)
        escapes, norms = [frame.escapes for frame in levels], [frame.norms for frame in levels]
        quantise.add_all_levels(symbols, escapes, norms, bucket, highest, form, out, scale)


def form_of(payload: Levels) -> int:
    """Reads the index in `kernels.quantise.FORMS` of the packing of the levels."""
    forms: list[int] = payload.form.tolist()
    if len(forms) != 1 or forms[0] >= len(quantise.FORMS):
        raise ValueError(f"form {forms[:4]}; one below {len(quantise.FORMS)} is expected")
    return forms[0]
