"""`atomo.Encoder`: what a worker encodes at every step, in room that it keeps."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, final

import torch
from torch import Generator, Size, Tensor

from atomo.api.description import Description, write_description
from atomo.api.encoding import announce_norm, description_of
from atomo.api.scratch import ScratchTensor
from atomo.api.validate import as_codec, as_compression, named, whole
from atomo.codecs import Codec
from atomo.core.names import described
from atomo.core.randomness import derive
from atomo.errors import CheckpointError, CodecError, ConfigError
from atomo.memory import (
    Memory,
    MomentumCorrection,
    check_fits,
    default_memory,
    kind_of,
    make_memory,
)
from atomo.wire import Compression, FrameBuffer, Header, Kind
from atomo.wire.buffer import longest_head

__all__ = ["Encoder"]

AUTO: Final = "auto"
STEP: Final = "/step"  # in a state: no parameter has a name like this


@dataclass(frozen=True)
class FrameLayout:
    """Layout of a frame, the same at every step of the same tensors."""

    about: Description
    description: bytes
    head: int
    """The most bytes before the sections."""


@final
class Encoder:
    """Encodes the tensors of one worker, step after step.

    Each call has the bytes of `atomo.encode` with the seed `seed_of(step)`. It takes less: the
    frame, and the copies that memories and codecs work on, lie in room that is kept.

    >>> import torch
    >>> encoder = Encoder("topk(ratio=0.3)", rank=1)
    >>> frame = encoder.encode({"weight": torch.tensor([[3.0, -4.0], [1.0, 0.5]])})
    >>> encoder.step, encoder.memory.state_dict()["weight"].tolist()
    (1, [[3.0, 0.0], [1.0, 0.5]])
    """

    def __init__(
        self,
        code: str | Codec[Any],
        *,
        memory: str | Memory = AUTO,
        momentum: float = 0.0,
        rank: int = 0,
        seed: int = 0,
        compression: Compression | None = None,
        dense_below: int | None = None,
    ) -> None:
        """Builds an encoder before its first step.

        Args:
            code: a codec, or its specification.
            memory: a memory, its specification, or "auto" for `default_memory` of the codec and
                the momentum.
            momentum: the momentum of a memory that is given by name; the optimiser must then not
                apply it.
            rank: of this worker: workers of different ranks round and sample differently.
            seed: the same on all workers, so that those codecs agree whose draws are shared.
            compression: blosc's settings for the sections.
            dense_below: as of `atomo.encode`.

        Raises:
            ConfigError: a setting is none, or the memory does not suit the codec or the momentum.
        """
        self.codec = as_codec(code)
        self.memory: Memory = memory_for(self.codec, memory, momentum)
        """The memory of this worker."""
        self.rank, self.seed = whole("rank", rank), whole("seed", seed)
        self._compression = as_compression(compression)
        self._dense_below = dense_below
        self._step = 0
        self._shapes: dict[str, Size] = {}
        self._plan: FrameLayout | None = None
        self._frame, self._scratch, self._generator = FrameBuffer(), ScratchTensor(), Generator()

    @property
    def step(self) -> int:
        """The number of the next step; every call of `encode` is one, also one that fails."""
        return self._step

    def seed_of(self, step: int) -> int:
        """Returns the seed of a step; all ranks have the same if the codec shares its draws."""
        rank = 0 if self.codec.shared_seed else self.rank
        return derive(self.seed, "encode", rank, step)

    def encode(self, tensors: Tensor | Iterable[Tensor] | Mapping[str, Tensor]) -> memoryview:
        """Encodes the tensors of one step.

        Args:
            tensors: as of `atomo.encode`, or by name. The memory keeps by name what is not sent,
                so that tensors may come in another order, and some of them not at all; in a list
                the place is the name. Names are not sent: `decode` has a list in the same order.

        Returns:
            The frame, which is valid until the next call: `bytes(...)` of it lasts. `decode`,
            `average`, sockets and files take it as it is.

        Raises:
            CodecError: as `atomo.encode` does, or a tensor has another shape than what is kept.
        """
        batch = named(tensors)
        self._generator.manual_seed(self.seed_of(self._step))
        self._step += 1
        plan = self._planned([*batch.values()], isinstance(tensors, Tensor))
        self._check_shapes(batch)
        announce_norm(self.memory, batch.values())
        self._frame.begin(plan.head)
        for name, tensor in batch.items():
            coder = plan.about.coder(tensor.shape)
            payload = self._encoded(coder, name, tensor)
            self._frame.add(coder.sections(payload), self._compression)
        return self._frame.seal(Header(Kind.TENSORS), plan.description)

    def state_dict(self) -> dict[str, Tensor]:
        """Returns the step and the memory by name, with which an encoder continues exactly."""
        return {STEP: torch.tensor(self._step)} | self.memory.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Replaces the step and what is kept by what `state_dict` returned.

        Raises:
            CheckpointError: it is no state of an encoder with this memory.
        """
        step = check_state(state)
        kept = {name: entry for name, entry in state.items() if name != STEP}
        self.memory.load_state_dict(kept)
        self._step, self._shapes = step, shapes_in(kept, self.memory)

    def __repr__(self) -> str:
        return (
            f"Encoder({str(self.codec)!r}, memory={self.memory.id!r}, rank={self.rank}, "
            f"seed={self.seed}, step={self._step})"
        )

    def _planned(self, batch: list[Tensor], single: bool) -> FrameLayout:
        """Returns the layout, made anew where tensors have changed."""
        about = description_of(self.codec, batch, single, self._dense_below)
        if self._plan is None or self._plan.about != about:
            description = write_description(about)
            shapes = (tensor.shape for tensor in batch)
            fields = [field for shape in shapes for field in about.coder(shape).fields(shape)]
            self._plan = FrameLayout(about, description, longest_head(description, fields))
        return self._plan

    def _check_shapes(self, batch: Mapping[str, Tensor]) -> None:
        """Raises CodecError if the memory holds a tensor of another shape under the same name."""
        for name, tensor in batch.items() if self.memory.vectors else ():
            known = self._shapes.setdefault(name, tensor.shape)
            if known != tensor.shape:
                raise CodecError(
                    f"tensor {name!r} is of shape {tuple(tensor.shape)}; what the memory keeps of "
                    f"it is of shape {tuple(known)}: give every tensor a name of its own"
                )

    def _encoded(self, codec: Codec[Any], name: str, tensor: Tensor) -> Any:
        """Encodes one tensor; the payload may be a view of it, or of the scratch tensor."""
        if not self.memory.vectors:  # nothing is kept, and nothing changes the tensor
            return codec.encode(self._scratch.readable(tensor), self._generator)
        own, layout = self._scratch.copy_of(tensor), {name: tensor.shape}
        return self.memory.encode(codec, own, layout, self._generator)


def memory_for(codec: Codec[Any], memory: object, momentum: float) -> Memory:
    """Returns the memory of an encoder."""
    if isinstance(memory, Memory):
        if momentum:
            raise ConfigError("momentum belongs to the memory that was given: leave it out here")
        check_fits(codec, memory)
        return memory
    if not isinstance(memory, str):
        raise ConfigError(f"memory must be a memory, or the name of one, got {described(memory)}")
    spec = default_memory(codec, momentum) if memory == AUTO else memory
    if momentum and kind_of(spec) is not MomentumCorrection:
        raise ConfigError(f"memory {spec} takes no momentum: leave {momentum} to the optimiser")
    check_fits(codec, spec)
    return make_memory(spec, momentum)


def check_state(state: Mapping[str, Any]) -> int:
    """Checks a state, and returns its step.

    Raises:
        CheckpointError: it is no state of an encoder.
    """
    step = state.get(STEP)
    if not isinstance(step, Tensor) or step.shape != () or step.dtype is not torch.int64:
        raise CheckpointError(f"the state of an encoder has a step as {STEP!r}, got {step}")
    if step < 0:
        raise CheckpointError(f"the state of an encoder has a step of 0 or more, got {int(step)}")
    for name, entry in state.items():
        finite = isinstance(entry, Tensor) and bool(entry.isfinite().all())
        if not finite or not (name == STEP or entry.is_floating_point()):
            raise CheckpointError(f"the state of {name!r} must be a tensor of finite numbers")
    return int(step)


def shapes_in(kept: Mapping[str, Tensor], memory: Memory) -> dict[str, Size]:
    """Returns the shapes of the tensors for which a memory holds something, by name."""
    return {
        name.removeprefix(prefix): entry.shape
        for prefix in memory.vectors
        for name, entry in kept.items()
        if name.startswith(prefix) and name not in memory.scalars
    }
