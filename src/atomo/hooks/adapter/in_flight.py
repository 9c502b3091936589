"""A chunk on its way through the stages of an average, and its scratch space."""

from dataclasses import dataclass, replace
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from atomo.exchange.base import Reduction
from atomo.fusion import Bucket
from atomo.hooks.adapter.chunks import Chunk, Parameters

__all__ = ["InFlight", "ScratchSpace"]


@final
@dataclass(frozen=True)
class InFlight:
    """A chunk between two stages."""

    chunk: Chunk
    bucket: Bucket
    flat: Float[Tensor, " n"]
    """Scratch space of the size of the bucket, which becomes the mean."""
    reduction: Reduction[Any, Any]
    """The reduction of this step."""
    payload: Any
    """The result of the stage before: first encoded, then received."""
    spoilt: bool = False
    """True if the mean is not finite, and the step is to be skipped."""

    def followed_by(self, payload: Any) -> "InFlight":
        """Returns the same chunk after the next stage."""
        return replace(self, payload=payload)


@final
class ScratchSpace:
    """A flat tensor for each chunk, the same at every step."""

    def __init__(self, spare: int = 0) -> None:
        """Has no tensors yet.

        Args:
            spare: how many entries each tensor has after those of its chunk.
        """
        self._spare = spare
        self._flats: dict[Parameters, Tensor] = {}
        self._served: set[Parameters] = set()

    def flat(self, chunk: Chunk) -> Float[Tensor, " n"]:
        """Returns the tensor of a chunk."""
        parameters = chunk.parameters
        self._served.add(parameters)
        if parameters not in self._flats:
            device = next(iter(chunk.gradients.values())).device
            size = sum(shape.numel() for _, shape in parameters)
            self._flats[parameters] = torch.empty(size + self._spare, device=device)
        return self._flats[parameters]

    def tidy(self) -> None:
        """Ends a step: frees the tensors of chunks that it did not have."""
        self._flats = {key: flat for key, flat in self._flats.items() if key in self._served}
        self._served.clear()
