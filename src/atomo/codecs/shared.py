"""What a codec has beside the contract where all workers of a step may encode at one scale.

A communicator that has a round for it asks each worker's codec for the scale that its gradient
wants, and has all encode with the codec at the largest. Decoding needs no such thing, as payloads
say their scale. A codec knows of no round: without one, each worker encodes at its own scale.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float

from atomo.codecs.base import Codec

__all__ = ["Shared", "shared"]


@runtime_checkable
class Shared(Protocol):
    """A codec whose scale may be given."""

    @property
    def is_shared(self) -> bool:
        """Whether this configuration wants one scale for all."""

    def ask(self, gradient: Float[torch.Tensor, "..."]) -> float:
        """The scale that one worker's gradient wants; finite and not negative.

        Raises:
            CodecError: the gradient holds NaN or infinity.
        """

    def at(self, scale: float) -> Codec[Any]:
        """This codec with a scale that was agreed on."""


def shared(codec: Codec[Any]) -> Shared | None:
    """The codec, where it wants one scale for all workers."""
    return codec if isinstance(codec, Shared) and codec.is_shared else None
