"""Interface of codecs for which all workers of a step may encode at one scale.

A communicator with a round for it asks each worker's codec for the scale of that worker's gradient,
and lets all workers encode at the largest. Payloads contain their scale, so that decoding needs no
agreement. A codec knows of no round: without one, each worker encodes at its own scale.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float

from atomo.codecs.base import Codec

__all__ = ["SharedScaleCodec", "shared_scale_codec"]


@runtime_checkable
class SharedScaleCodec(Protocol):
    """A codec with a scale that callers may set."""

    @property
    def shares_scale(self) -> bool:
        """True if this configuration uses one scale for all workers."""

    def requested_scale(self, gradient: Float[torch.Tensor, "..."]) -> float:
        """Returns the scale that one worker's gradient needs; finite and not negative.

        Raises:
            CodecError: the gradient holds NaN or infinity.
        """

    def with_scale(self, scale: float) -> Codec[Any]:
        """Returns this codec with the scale that the workers agreed on."""


def shared_scale_codec(codec: Codec[Any]) -> SharedScaleCodec | None:
    """Returns the codec if it uses one scale for all workers, else None."""
    return codec if isinstance(codec, SharedScaleCodec) and codec.shares_scale else None
