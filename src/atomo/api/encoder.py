"""`atomo.Encoder`: encodes a worker's tensors at every step, in buffers that are reused."""

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
STEP: Final = "/step"  # key in a state dict; no parameter has such a name


@dataclass(frozen=True)
class FrameLayout:
    """Layout of a frame, the same at every step of the same tensors."""

    about: Description
    description: bytes
    head: int
    """Maximum number of bytes before the sections."""


@final
class Encoder:
    """Encoder of one worker's tensors, step after step.

    Each call gives the same bytes as `atomo.encode` with the seed `seed_of(step)`, in less time:
    the buffers of the frame and of the copies that memories and codecs work on are reused.

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
            momentum: the momentum of a memory that is given by name; the optimizer must then not
                apply momentum.
            rank: of this worker: workers of different ranks round and sample differently.
            seed: must be the same on all workers: some codecs need the same draws on all workers.
            compression: blosc's settings for the sections.
            dense_below: as for `atomo.encode`.

        Raises:
            ConfigError: a setting is invalid, or the memory does not suit the codec or the
                momentum.
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
        """Number of the next step. Every call of `encode` is a step, even a call that fails."""
        return self._step

    def seed_of(self, step: int) -> int:
        """Returns the seed of a step; all ranks have the same if the codec shares its draws."""
        rank = 0 if self.codec.shared_seed else self.rank
        return derive(self.seed, "encode", rank, step)

    def encode(self, tensors: Tensor | Iterable[Tensor] | Mapping[str, Tensor]) -> memoryview:
        """Encodes the tensors of one step.

        Args:
            tensors: as for `atomo.encode`, or a mapping of names to tensors. The memory stores the
                residual of each name: the order of the tensors may change from step to step, and
                tensors may be absent. In a list the position is the name. Names are not sent:
                `decode` returns a list in the order of the call.

        Returns:
            The frame. The next call overwrites the frame; `bytes(...)` makes a copy. `decode`,
            `average`, sockets and files accept the frame itself.

        Raises:
            CodecError: as for `atomo.encode`, or a tensor has another shape than its residual.
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
        """Returns the step and the memory's tensors by name; `load_state_dict` continues exactly
        from them.
        """
        return {STEP: torch.tensor(self._step)} | self.memory.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restores the step and the memory from the result of `state_dict`.

        Raises:
            CheckpointError: `state` is no state of an encoder with this memory.
        """
        step = check_state(state)
        residuals = {name: entry for name, entry in state.items() if name != STEP}
        self.memory.load_state_dict(residuals)
        self._step, self._shapes = step, shapes_in(residuals, self.memory)

    def __repr__(self) -> str:
        return (
            f"Encoder({str(self.codec)!r}, memory={self.memory.id!r}, rank={self.rank}, "
            f"seed={self.seed}, step={self._step})"
        )

    def _planned(self, batch: list[Tensor], single: bool) -> FrameLayout:
        """Returns the layout of the frame; builds a new layout only if the tensors changed."""
        about = description_of(self.codec, batch, single, self._dense_below)
        if self._plan is None or self._plan.about != about:
            description = write_description(about)
            shapes = (tensor.shape for tensor in batch)
            fields = [field for shape in shapes for field in about.coder(shape).fields(shape)]
            self._plan = FrameLayout(about, description, longest_head(description, fields))
        return self._plan

    def _check_shapes(self, batch: Mapping[str, Tensor]) -> None:
        """Raises CodecError if a tensor has another shape than its residual in the memory."""
        for name, tensor in batch.items() if self.memory.vectors else ():
            shape = self._shapes.setdefault(name, tensor.shape)
            if shape != tensor.shape:
                raise CodecError(
                    f"tensor {name!r} is of shape {tuple(tensor.shape)}; its residual in the "
                    f"memory is of shape {tuple(shape)}: give every tensor a name of its own"
                )

    def _encoded(self, codec: Codec[Any], name: str, tensor: Tensor) -> Any:
        """Encodes one tensor; the payload may be a view of it, or of the scratch tensor."""
        if not self.memory.vectors:  # no residual, and nothing changes the tensor
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
        raise ConfigError(f"memory {spec} takes no momentum: leave {momentum} to the optimizer")
    check_fits(codec, spec)
    return make_memory(spec, momentum)


def check_state(state: Mapping[str, Any]) -> int:
    """Checks a state, and returns its step.

    Raises:
        CheckpointError: `state` is no state of an encoder.
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


def shapes_in(residuals: Mapping[str, Tensor], memory: Memory) -> dict[str, Size]:
    """Returns the shapes of the residuals in a memory's state, by the tensor's name."""
    return {
        name.removeprefix(prefix): entry.shape
        for prefix in memory.vectors
        for name, entry in residuals.items()
        if name.startswith(prefix) and name not in memory.scalars
    }
