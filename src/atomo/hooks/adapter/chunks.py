"""Chunks of gradients, from the caller's tensors to a flat bucket and back.

A chunk holds gradients that travel together. Its codecs make a bucket of it. Small parameters, or
all parameters in the first steps, may travel dense whatever the codec. Both rules are those of
DRAGONN (Wang, Wu and Ng, "DRAGONN: Distributed Randomized Approximate Gradients of Neural
Networks", ICML 2022). A dense gradient includes the residual of its memory.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any, Final, final

import torch
from jaxtyping import Float
from torch import Size, Tensor

from atomo.codecs import Codec
from atomo.codecs.by_name import NONE, ByName, dense_below
from atomo.errors import CheckpointError, ConfigError
from atomo.exchange.base import ALL_USED, Reduction, Usage
from atomo.fusion import Bucket
from atomo.fusion.buckets import divide
from atomo.kernels import peaks
from atomo.kernels.peaks import INFINITY

__all__ = [
    "NEVER",
    "Chunk",
    "Codecs",
    "DensePolicy",
    "InFlight",
    "Parameters",
    "ScratchSpace",
    "bucket_of",
    "collect",
    "spread",
    "taken",
    "usage_of",
]

MOST_BUCKETS: Final = 1024  # remembered; a model of many experts uses other ones at each step
HALVES: Final = frozenset({torch.bfloat16, torch.float16})
FORMAT: Final = 1  # of a state without rules for dense transfer
WITH_DENSE: Final = 2
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


@final
@dataclass(frozen=True)
class DensePolicy:
    """Limits of dense transfer: the same on all ranks, and to the end of a run."""

    dense_below: int = 0
    """Parameters of fewer entries are dense; higher => more bytes."""
    dense_steps: int = 0
    """Number of first steps in which all parameters are dense."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ConfigError(f"{name} must be a whole number from 0, got {value!r}")

    def rules(self, parameters: Mapping[str, Tensor]) -> ByName:
        """Returns the codecs of small parameters."""
        shapes = [(name, parameter.shape) for name, parameter in parameters.items()]
        return dense_below(shapes, self.dense_below)

    def covers(self, step: int) -> bool:
        """Returns True if all travels dense at a step, from 0."""
        return step < self.dense_steps

    def state_dict(self) -> dict[str, Any]:
        """Returns the rules for a state; states without rules have an older format."""
        if self == NEVER:
            return {"format": FORMAT}
        return {"format": WITH_DENSE} | asdict(self)

    def check(self, state: Mapping[str, Any]) -> None:
        """Raises CheckpointError if a state has other limits, or another format."""
        found, formats = state.get("format"), (FORMAT, WITH_DENSE)
        if found not in formats:
            raise CheckpointError(f"format {found!r}; this one reads {FORMAT} and {WITH_DENSE}")
        said = {name: state.get(name, 0) for name in asdict(self)}
        # torch.distributed.checkpoint fills in what it is asked for: then the form says it alone.
        if said != asdict(self) or (found == WITH_DENSE) != (self != NEVER):
            mine = ", ".join(f"{name} {value}" for name, value in asdict(self).items())
            theirs = ", ".join(f"{name} {state.get(name, 'not 0')}" for name in said)
            raise CheckpointError(
                f"the state is of an exchange with {theirs if found == WITH_DENSE else 'neither'}, "
                f"and this one has {mine}: give what it was saved with"
            )

    def __str__(self) -> str:
        return f"dense below {self.dense_below} and for {self.dense_steps} steps"


NEVER: Final = DensePolicy()


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
