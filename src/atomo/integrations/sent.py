"""A chunk on its way through the stages of an average, and the room that it takes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from atomo.communicators.low_rank import Held
from atomo.fusion import Bucket
from atomo.integrations.chunk import Chunk, Parameters
from atomo.integrations.encoder import Coded
from atomo.wire import Bytes

__all__ = ["Scratch", "Sent"]


@final
@dataclass(frozen=True)
class Sent:
    """A chunk on its way: what this rank says of it, and then what all ranks said."""

    chunk: Chunk
    scale: float
    bucket: Bucket
    flat: Float[Tensor, " n"]
    """Scratch space of the size of the bucket."""
    said: Sequence[Bytes]
    """Nothing where `flat` has the mean."""
    held: Held | None = None
    """What a method has encoded."""
    coded: Coded | None = None
    """What a codec has, until it is in a frame or in a sum."""


@final
class Scratch:
    """A flat tensor for each chunk, the same at every step."""

    def __init__(self, spare: int = 0) -> None:
        """None yet.

        Args:
            spare: how many entries each has behind those of its chunk.
        """
        self._spare = spare
        self._flats: dict[Parameters, Tensor] = {}
        self._served: set[Parameters] = set()

    def flat(self, chunk: Chunk) -> Float[Tensor, " n"]:
        """That of a chunk."""
        parameters = chunk.parameters
        self._served.add(parameters)
        if parameters not in self._flats:
            device = next(iter(chunk.gradients.values())).device
            size = sum(shape.numel() for _, shape in parameters)
            self._flats[parameters] = torch.empty(size + self._spare, device=device)
        return self._flats[parameters]

    def tidy(self) -> None:
        """Ends a step: whose buckets have changed gets their room back."""
        self._flats = {key: flat for key, flat in self._flats.items() if key in self._served}
        self._served.clear()
