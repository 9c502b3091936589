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
from atomo.fusion.buckets import divide, placed
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
    "bucket_in_place",
    "bucket_of",
    "collect",
    "flat_gradient",
    "spread",
    "usage_in",
    "usage_of",
]

MAX_BUCKETS: Final = 1024  # in the cache; a model of many experts has other buckets at each step
FEW: Final = 8  # an eighth of a bucket may be copied several times
HALVES: Final = frozenset({torch.bfloat16, torch.float16})
FORMAT: Final = 1  # of a state without rules for dense transfer
WITH_DENSE: Final = 2
Parameters = tuple[tuple[str, Size], ...]


@final
@dataclass(frozen=True)
class Chunk:
    """The gradients of some parameters, which are averaged, and replaced in place."""

    number: int
    gradients: Mapping[str, Tensor]
    """By parameter name, in the parameter's shape; any strides, any floating dtype."""
    whole: Tensor | None = None
    """The tensor that holds all gradients, if there is one."""
    scale: float = 1.0
    """The factor by which the gradients were multiplied; a memory has them without the factor."""

    @property
    def parameters(self) -> Parameters:
        """Names and shapes."""
        return tuple((name, gradient.shape) for name, gradient in self.gradients.items())

    @property
    def dense_bytes(self) -> int:
        """The bytes of the uncompressed gradients."""
        return sum(gradient.nbytes for gradient in self.gradients.values())

    def flat_view(self, bucket: Bucket) -> Tensor | None:
        """Returns one flat view of the gradients in the order of a bucket; None without a copy."""
        if self.whole is None or not self.whole.is_contiguous():
            return None
        first = self.whole.storage_offset()
        for slot in bucket.slots:
            gradient = self.gradients[slot.name]
            if gradient.storage_offset() != first + slot.start or not gradient.is_contiguous():
                return None
        return self.whole.view(-1)

    def lies_as(self, bucket: Bucket) -> bool:
        """True if `whole` is float32, and the gradients lie in it as in a bucket, unscaled."""
        whole = self.whole
        if whole is None or whole.dim() != 1 or whole.dtype != torch.float32 or self.scale != 1:
            return False
        return self.flat_view(bucket) is not None

    def joined(self, scratch: Callable[[], Float[Tensor, " n"]]) -> Float[Tensor, " n"]:
        """Returns the flat gradients: `whole` if it is float32, else a copy in scratch space."""
        if self.whole is not None and self.whole.dtype == torch.float32:
            return self.whole
        flat = scratch()
        for gradient, part in self._with_parts(flat):
            part.copy_(gradient)
        return flat

    def replace(self, joined: Tensor) -> None:
        """Copies the flat gradients of `joined` back to the gradients."""
        for gradient, part in self._with_parts(joined):
            gradient.copy_(part)

    def _with_parts(self, joined: Float[Tensor, " n"]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields each gradient, with its part of the flat gradients."""
        parts = torch.split(joined, [gradient.numel() for gradient in self.gradients.values()])
        for gradient, part in zip(self.gradients.values(), parts, strict=True):
            yield gradient, part.view(gradient.shape)

    @property
    def half(self) -> torch.dtype | None:
        """The dtype of all gradients, if it is one half precision; else None."""
        dtypes = {gradient.dtype for gradient in self.gradients.values()}
        return next(iter(dtypes)) if len(dtypes) == 1 and dtypes <= HALVES else None


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
        version, formats = state.get("format"), (FORMAT, WITH_DENSE)
        if version not in formats:
            raise CheckpointError(f"format {version!r}; this one reads {FORMAT} and {WITH_DENSE}")
        limits = {name: state.get(name, 0) for name in asdict(self)}
        # torch.distributed.checkpoint fills in the requested limits: then only the format tells.
        if limits != asdict(self) or (version == WITH_DENSE) != (self != NEVER):
            own = ", ".join(f"{name} {value}" for name, value in asdict(self).items())
            saved = ", ".join(f"{name} {state.get(name, 'not 0')}" for name in limits)
            raise CheckpointError(
                "the state is of an exchange with "
                f"{saved if version == WITH_DENSE else 'neither'}, and this one has {own}: give "
                "the limits that it was saved with"
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
    """The tensor that becomes the mean: scratch space, or the tensor of the gradients."""
    reduction: Reduction[Any, Any]
    """The reduction of this step."""
    payload: Any
    """The result of the stage before: first encoded, then received."""
    spoilt: bool = False
    """True if the mean is not finite, and the step is to be skipped."""

    def followed_by(self, payload: Any) -> "InFlight":
        """Returns the same chunk after the next stage."""
        return replace(self, payload=payload)

    def write_back(self) -> None:
        """Copies the mean to the gradients, if they are not in the same tensor."""
        chunk, flat = self.chunk, self.flat
        if flat is chunk.whole:
            return
        if self.reduction.entrywise:
            chunk.replace(flat)
            return
        if chunk.scale != 1:
            flat.mul_(chunk.scale)
        spread(self.bucket, flat, chunk.gradients)


@final
class ScratchSpace:
    """A flat tensor for each chunk, the same at every step."""

    def __init__(self, spare: int = 0) -> None:
        """Has no tensors yet.

        Args:
            spare: the number of entries that each tensor has after the entries of its chunk.
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
        """Ends a step: frees the tensors of chunks that the step did not have."""
        self._flats = {key: flat for key, flat in self._flats.items() if key in self._served}
        self._served.clear()


@lru_cache(MAX_BUCKETS)
def bucket_of(number: int, parameters: Parameters, codecs: Codecs) -> Bucket:
    """Makes the bucket of these parameters."""
    return Bucket(number, 0, divide(parameters, codecs.codec, codecs.by_name))


@lru_cache(MAX_BUCKETS)
def bucket_in_place(number: int, parameters: Parameters, codecs: Codecs) -> Bucket | None:
    """Returns the bucket of these parameters in their own order; None if a copy is faster.

    Parameters that a codec encodes together, and that lie apart, are copied several times.
    """
    bucket = placed(bucket_of(number, parameters, codecs), [name for name, _ in parameters])
    apart = sum(part.shape.numel() for part in bucket.parts if not part.adjacent)
    return bucket if FEW * apart <= bucket.size else None


def collect(
    bucket: Bucket, gradients: Mapping[str, Tensor], scale: float, flat: Float[Tensor, " n"]
) -> list[int]:
    """Copies gradients, divided by `scale`, to their places in a flat bucket.

    Returns:
        The bits of the largest magnitude of each gradient, as in `kernels.peaks`.
    """
    return peaks.join([gradients[slot.name] for slot in bucket.slots], flat, scale)


def flat_gradient(
    bucket: Bucket, chunk: Chunk, flat: Float[Tensor, " n"], reads: bool
) -> tuple[Float[Tensor, " n"], list[int]]:
    """Returns the flat gradient of a bucket, and the result of `collect`.

    If memory and codec read half precision, gradients in half precision are not converted: without
    a copy where they already are in the order of the bucket, and else copied to the first half of
    `flat`. All other gradients are copied to `flat` in float32. That is the only copy: `flat`
    becomes the mean, and is the same tensor at every step.

    Args:
        bucket: the bucket of these parameters.
        chunk: the gradients of the parameters.
        flat: scratch space of the size of the bucket.
        reads: True if memory and codec read half precision.
    """
    half = chunk.half if reads and chunk.scale == 1 else None
    if half is None:
        return flat, collect(bucket, chunk.gradients, chunk.scale, flat)
    gradient = chunk.flat_view(bucket)
    if gradient is None:
        gradient = flat.view(half)[: len(flat)]
        return gradient, collect(bucket, chunk.gradients, 1.0, gradient)
    return gradient, largest(bucket, gradient)


def largest(bucket: Bucket, gradient: Tensor) -> list[int]:
    """Returns the bits of the largest magnitude of each parameter in a flat gradient."""
    return peaks.largest_in(gradient, bucket.starts, bucket.stops)


def usage_in(bucket: Bucket, flat: Float[Tensor, " n"]) -> Usage:
    """Returns which parameters of a flat gradient were used."""
    return usage_of(bucket, largest(bucket, flat))


def usage_of(bucket: Bucket, peaks: Sequence[int]) -> Usage:
    """Returns which parameters of a bucket were used.

    Args:
        bucket: the bucket of these parameters.
        peaks: the bits of the largest magnitude of each gradient.
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
