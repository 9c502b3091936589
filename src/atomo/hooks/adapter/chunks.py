"""Gradients of somebody else's that travel together, and the bucket that they make."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, final

import torch
from jaxtyping import Float
from torch import Size, Tensor

from atomo.codecs import Codec
from atomo.codecs.by_name import NONE, ByName
from atomo.exchange.base import ALL_USED, Usage
from atomo.fusion import Bucket
from atomo.fusion.buckets import divide
from atomo.kernels import peaks
from atomo.kernels.peaks import INFINITY

__all__ = ["Chunk", "Codecs", "Parameters", "bucket_of", "collect", "spread", "taken", "usage_of"]

MOST_BUCKETS: Final = 1024  # remembered; a model of many experts uses other ones at each step
HALVES: Final = frozenset({torch.bfloat16, torch.float16})
Parameters = tuple[tuple[str, Size], ...]


@final
@dataclass(frozen=True)
class Chunk:
    """Some parameters' gradients: to be averaged, and replaced in place."""

    number: int
    gradients: Mapping[str, Tensor]
    """By parameter name, in the parameter's shape; any strides, any floating dtype."""
    whole: Tensor | None = None
    """The tensor that holds all gradients, if there is one."""
    scale: float = 1.0
    """The factor that the gradients were multiplied with; a memory holds them without it."""

    @property
    def parameters(self) -> Parameters:
        """Names and shapes."""
        return tuple((name, gradient.shape) for name, gradient in self.gradients.items())

    @property
    def dense_bytes(self) -> int:
        """The bytes of the gradients as they are."""
        return sum(gradient.nbytes for gradient in self.gradients.values())

    def lies_as(self, bucket: Bucket) -> Tensor | None:
        """Returns the gradients as one flat view if they lie so, in the order of a bucket."""
        if self.whole is None or not self.whole.is_contiguous():
            return None
        first = self.whole.storage_offset()
        for slot in bucket.slots:
            gradient = self.gradients[slot.name]
            if gradient.storage_offset() != first + slot.start or not gradient.is_contiguous():
                return None
        return self.whole.view(-1)

    def joined(self, room: Callable[[], Float[Tensor, " n"]]) -> Float[Tensor, " n"]:
        """Returns the gradients in a row: `whole` if it is float32, else a copy in that room."""
        if self.whole is not None and self.whole.dtype == torch.float32:
            return self.whole
        there = room()
        for gradient, part in self._beside(there):
            part.copy_(gradient)
        return there

    def replace(self, joined: Tensor) -> None:
        """Copies what `joined` copied back to where it came from."""
        for gradient, part in self._beside(joined):
            gradient.copy_(part)

    def _beside(self, joined: Float[Tensor, " n"]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields each gradient, with its place in a row."""
        parts = torch.split(joined, [gradient.numel() for gradient in self.gradients.values()])
        for gradient, part in zip(self.gradients.values(), parts, strict=True):
            yield gradient, part.view(gradient.shape)

    @property
    def half(self) -> torch.dtype | None:
        """The half precision that all gradients are in, if they are."""
        found = {gradient.dtype for gradient in self.gradients.values()}
        return next(iter(found)) if len(found) == 1 and found <= HALVES else None


@final
@dataclass(frozen=True)
class Codecs:
    """The codec of each parameter."""

    codec: Codec[Any]
    by_name: ByName = NONE


@lru_cache(MOST_BUCKETS)
def bucket_of(number: int, parameters: Parameters, codecs: Codecs) -> Bucket:
    """Makes the bucket of these parameters."""
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
    bucket: Bucket, chunk: Chunk, flat: Float[Tensor, " n"], reads: bool
) -> tuple[Float[Tensor, " n"], list[int]]:
    """Returns the flat gradient of a bucket, and the result of `collect`.

    Half precision stays what it is where it is read so, at half the bytes: it is taken where it
    lies, if that is as the bucket has it, and else joined in a half of `flat`. All else goes there
    as float32, which is the only copy: the room is that of the mean, the same at every step.

    Args:
        bucket: of these parameters.
        chunk: their gradients.
        flat: scratch space of the size of the bucket.
        reads: True if memory and codec read half precision.
    """
    half = chunk.half if reads and chunk.scale == 1 else None
    if half is None:
        return flat, collect(bucket, chunk.gradients, chunk.scale, flat)
    there = chunk.lies_as(bucket)
    if there is None:
        there = flat.view(half)[: len(flat)]
        return there, collect(bucket, chunk.gradients, 1.0, there)
    return there, peaks.largest([there[slot.start : slot.stop] for slot in bucket.slots])


def usage_of(bucket: Bucket, peaks: Sequence[int]) -> Usage:
    """Returns which parameters of a bucket were used.

    Args:
        bucket: of these parameters.
        peaks: the bits of the largest magnitude of the gradient of each.
    """
    if min(peaks) > 0 and max(peaks) < INFINITY:
        return ALL_USED
    pairs = [*zip(bucket.slots, peaks, strict=True)]
    unused = frozenset(slot.name for slot, peak in pairs if not peak)
    return Usage(unused, frozenset(slot.name for slot, peak in pairs if peak >= INFINITY))


def spread(bucket: Bucket, flat: Float[Tensor, " n"], gradients: Mapping[str, Tensor]) -> None:
    """Copies a flat mean back to the gradients: the inverse of `collect`."""
    for slot in bucket.slots:
        gradients[slot.name].copy_(flat[slot.start : slot.stop].view(slot.shape))
