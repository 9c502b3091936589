"""Payload of sign codecs: a bit for each entry, and a scale for all entries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int32

from atomo.codecs.base import Field
from atomo.errors import CodecError
from atomo.kernels import sign

__all__ = ["Signs", "add_sign_payload", "scale_of", "sign_fields"]


@dataclass(frozen=True)
class Signs:
    """scale * sign: the bit is 1 for a negative entry, -0.0 included, and 0 for all others."""

    words: Int32[torch.Tensor, " words"]
    scale: Float[torch.Tensor, " one"]


def sign_fields(shape: torch.Size) -> tuple[Field, ...]:
    """Returns the bounds of `Signs`."""
    return Field(torch.int32, (sign.word_count(shape.numel()),)), Field(torch.float32, (1,))


def scale_of(payload: Signs, codec: str) -> float:
    """Returns the scale of an untrusted payload.

    Raises:
        CodecError: the payload has no scale, or several.
    """
    if len(payload.scale) != 1:
        raise CodecError(f"{codec}: {len(payload.scale)} scales; 1 is expected")
    return float(payload.scale)


def add_sign_payload(
    payloads: Sequence[Signs], units: Sequence[float], out: Float[torch.Tensor, " n"]
) -> None:
    """Adds the signs of each times its unit to `out`, one after the other, in place.

    Raises:
        ValueError: a payload does not fit; `out` is unchanged.
    """
    if payloads:
        sign.add_all_signs([payload.words for payload in payloads], units, out)
