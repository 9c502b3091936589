"""Gradients of somebody else's that travel together, and the bucket that they make."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, final

import torch
from jaxtyping import Float
from torch import Size, Tensor

from atomo.codecs import Codec
from atomo.codecs.by_name import NONE, ByName
from atomo.fusion import Bucket
from atomo.fusion.buckets import divide
from atomo.kernels import peaks

__all__ = ["Chunk", "Codecs", "Parameters", "bucket_of", "collect", "spread", "taken"]

MOST_BUCKETS: Final = 1024  # remembered; a model of many experts uses other ones at each step
HALVES: Final = (torch.bfloat16, torch.float16)
Parameters = tuple[tuple[str, Size], ...]


@final
@dataclass(frozen=True)
class Chunk:
    """Some parameters' gradients: to be averaged, and replaced in place."""

    number: int
    gradients: Mapping[str, Tensor]
    """By parameter name, in the parameter's shape; any strides, any floating dtype."""
    whole: Tensor | None = None
    """All of them at once, where they lie in one tensor."""

    @property
    def parameters(self) -> Parameters:
        """Names and shapes."""
        return tuple((name, gradient.shape) for name, gradient in self.gradients.items())

    @property
    def dense_bytes(self) -> int:
        """What they have as they are."""
        return sum(gradient.nbytes for gradient in self.gradients.values())

    def lies_as(self, bucket: Bucket) -> Tensor | None:
        """All of them in one row, where they lie so and in the order of a bucket."""
        if self.whole is None or not self.whole.is_contiguous():
            return None
        first = self.whole.storage_offset()
        for slot in bucket.slots:
            gradient = self.gradients[slot.name]
            if gradient.storage_offset() != first + slot.start or not gradient.is_contiguous():
                return None
        return self.whole.view(-1)

    def joined(self) -> Tensor:
        """All of them in a row: themselves where they lie so, a copy where they do not."""
        if self.whole is not None:
            return self.whole
        return torch.cat([gradient.flatten() for gradient in self.gradients.values()])

    def replace(self, joined: Tensor) -> None:
        """Copies what `joined` copied back to where it came from."""
        sizes = [gradient.numel() for gradient in self.gradients.values()]
        parts = torch.split(joined, sizes)
        for gradient, part in zip(self.gradients.values(), parts, strict=True):
            gradient.copy_(part.view(gradient.shape))


@final
@dataclass(frozen=True)
class Codecs:
    """Which codec each parameter has."""

    codec: Codec[Any]
    by_name: ByName = NONE
    chunked: bool = False
    """Whether all ranks send the same chunks of `chunktopk`."""


@lru_cache(MOST_BUCKETS)
def bucket_of(number: int, parameters: Parameters, codecs: Codecs) -> Bucket:
    """The bucket of these parameters."""
    return Bucket(number, 0, divide(parameters, codecs.codec, codecs.by_name))


def collect(
    bucket: Bucket, gradients: Mapping[str, Tensor], scale: float, flat: Float[Tensor, " n"]
) -> list[int]:
    """Copies gradients, over `scale`, to where the bucket has them.

    Returns:
        The bits of the largest magnitude of each, as `kernels.peaks` has them.
    """
    return peaks.join([gradients[slot.name] for slot in bucket.slots], flat, scale)


def taken(
    bucket: Bucket, chunk: Chunk, scale: float, flat: Float[Tensor, " n"]
) -> tuple[Float[Tensor, " n"], list[int]]:
    """The gradient of a bucket, and what `collect` returns.

    Half precision that lies as the bucket has it is taken where it is: what encodes it reads it, at
    half the bytes, or makes a float32 copy of what it cannot read. All else goes to `flat`.
    """
    there = chunk.lies_as(bucket) if scale == 1 else None
    if there is None or there.dtype not in HALVES:
        return flat, collect(bucket, chunk.gradients, scale, flat)
    return there, peaks.largest([there[slot.start : slot.stop] for slot in bucket.slots])


def spread(bucket: Bucket, flat: Float[Tensor, " n"], gradients: Mapping[str, Tensor]) -> None:
    """The inverse of `collect`."""
    for slot in bucket.slots:
        gradients[slot.name].copy_(flat[slot.start : slot.stop].view(slot.shape))
