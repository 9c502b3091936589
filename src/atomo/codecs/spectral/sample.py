"""A sample of orthogonal atoms on the wire: places and signs, and numbers only where they differ.

An atom that is drawn with probability |c| t is sent as c / p = sign(c) / t, the same magnitude for
all of them: a sign bit each is enough. Only atoms with probability 1 need a number of their own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int32, Int64, UInt8

from atomo.codecs.base import Field
from atomo.codecs.checks import as_codec_error
from atomo.codecs.cost import DecodeCost, read_count
from atomo.codecs.seeds import draw_seed
from atomo.errors import CodecError
from atomo.kernels import rice
from atomo.kernels.atoms import sample_entries

__all__ = ["Sample", "draw_sample", "read_sample", "sample_cost", "sample_fields"]

MASK = 2**31 - 1
ROOM = 32  # bytes that an atom takes while it is read


@dataclass(frozen=True)
class Sample:
    """The indices of the drawn atoms, and their coefficients."""

    counts: Int32[torch.Tensor, " counts"]
    """Entries of the gradient, modulo 2^31; atoms that chance chose; atoms that are always sent."""
    drawn: UInt8[torch.Tensor, " drawn"]
    """The places of those that chance chose, under a Rice code."""
    signs: UInt8[torch.Tensor, " signs"]
    """1 for a negative one of these; the first is the lowest bit of the first byte."""
    magnitude: Float[torch.Tensor, " magnitude"]
    """The magnitude of every drawn atom that is not certain."""
    certain: UInt8[torch.Tensor, " certain"]
    """The places of those that are always sent, under a Rice code."""
    values: Float[torch.Tensor, " k"]
    """The coefficients of these."""


def draw_sample(
    coefficients: Float[torch.Tensor, " n"],
    rate: float,
    generator: torch.Generator,
    codec: str,
    entries: int,
) -> Sample:
    """Draws each coefficient c, of a gradient with `entries`, with probability min(1, |c| rate).

    Raises:
        CodecError: the coefficients are not finite (the rate is NaN), or the magnitude of the
            drawn atoms is not.
    """
    if math.isnan(rate):
        raise CodecError(f"{codec}: the gradient holds NaN or infinity, or its sums leave float32")
    magnitude = 1 / rate
    if magnitude > torch.finfo(torch.float32).max:
        raise CodecError(f"{codec}: atoms of this gradient overflow float32; scale it down first")
    places = sample_entries(coefficients, rate, draw_seed(generator))
    drawn_values = coefficients[places]
    certain = drawn_values.double().abs() * rate >= 1
    # The drawn atoms first, in their order: a mask for each part would be counted on the device.
    order = certain.to(torch.uint8).argsort(stable=True)
    places, drawn_values = places[order], drawn_values[order]
    count = len(order) - int(certain.sum())
    return Sample(
        torch.tensor([entries & MASK, count, len(order) - count], dtype=torch.int32),
        rice.encode(places[:count], len(coefficients)),
        packed(drawn_values[:count] < 0),
        torch.tensor([magnitude], dtype=torch.float32),
        rice.encode(places[count:], len(coefficients)),
        drawn_values[count:],
    )


def sample_fields(atoms: int) -> tuple[Field, ...]:
    """Returns the bounds of the tensors of a sample for a number of atoms."""
    places = Field(torch.uint8, (rice.most_bytes(atoms, atoms),))
    signs = Field(torch.uint8, (bytes_for(atoms),))
    magnitude, values = (Field(torch.float32, (count,)) for count in (1, atoms))
    return Field(torch.int32, (3,)), places, signs, magnitude, places, values


def sample_cost(payload: Sample, atoms: int, visits: int = 1) -> DecodeCost:
    """Returns the cost of reading a sample and adding its atoms at `visits` visits."""
    claimed = read_count(payload.counts, 1) + read_count(payload.counts, 2)
    # More than there are, or than there are bits for, is refused before anything else.
    count = min(claimed, 2 * atoms, 8 * (len(payload.drawn) + len(payload.certain)))
    return DecodeCost(count * (visits + 1), ROOM * count)


def read_sample(
    payload: Sample, atoms: int, codec: str, entries: int
) -> tuple[Int64[torch.Tensor, " k"], Float[torch.Tensor, " k"]]:
    """Reads the indices and the coefficients of a sample, on the CPU.

    Raises:
        CodecError: the payload is malformed, or belongs to a gradient with another number of
            entries.
    """
    claimed, *counts = payload.counts.tolist() or [-1]
    sizes = len(payload.signs), len(payload.magnitude), len(payload.values)
    if (
        claimed != entries & MASK
        or len(counts) != 2
        or sizes != (bytes_for(counts[0]), 1, counts[1])
    ):
        raise CodecError(
            f"{codec}: {sizes[0]} bytes of signs, {sizes[1]} magnitudes and {sizes[2]} values for "
            f"{counts} atoms drawn and certain of {claimed} entries, and {entries} are expected"
        )
    with as_codec_error(codec):
        drawn = rice.decode(payload.drawn, counts[0], atoms)
        certain = rice.decode(payload.certain, counts[1], atoms)
        check_apart(drawn, certain)
    negative, magnitude = unpacked(payload.signs.cpu(), counts[0]), payload.magnitude.cpu()
    drawn_values = torch.where(negative, -magnitude, magnitude)
    return torch.cat([drawn, certain]), torch.cat([drawn_values, payload.values.cpu()])


def check_apart(drawn: Int64[torch.Tensor, " k"], certain: Int64[torch.Tensor, " c"]) -> None:
    """Raises NotIndices where a place is in both, which are increasing."""
    if not len(drawn):
        return
    beside = torch.searchsorted(drawn, certain).clamp_(max=len(drawn) - 1)
    if bool((drawn[beside] == certain).any()):
        raise rice.NotIndices(f"atoms that are both drawn and certain, of {len(certain)} certain")


def bytes_for(bits: int) -> int:
    return (bits + 7) // 8


def packed(bits: Bool[torch.Tensor, " n"]) -> UInt8[torch.Tensor, " bytes"]:
    """Packs truth values, eight to a byte."""
    return torch.from_numpy(np.packbits(bits.cpu().numpy(), bitorder="little"))


def unpacked(octets: UInt8[torch.Tensor, " bytes"], count: int) -> Bool[torch.Tensor, " n"]:
    bits = np.unpackbits(octets.numpy(), count=count, bitorder="little")
    return torch.from_numpy(bits.view(np.bool_))
