"""The exchange of a hook or an optimiser: gradients go in and come back averaged, in threads."""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
from safetensors.torch import load, save
from torch import Tensor

from atomo.core.devices import SideStreams
from atomo.errors import CheckpointError
from atomo.exchange.engine.serial_executor import SerialExecutor
from atomo.exchange.engine.stages import StagePipeline, StageWork
from atomo.hooks.adapter.averager import Averager
from atomo.hooks.adapter.chunks import Chunk, bucket_of
from atomo.hooks.adapter.host_averager import HostAverager
from atomo.hooks.adapter.intra_host import HookHostGroup
from atomo.hooks.adapter.memory_owner import MemoryOwner
from atomo.hooks.adapter.stats import Stats
from atomo.hooks.optimizers.noise_meter import NoiseMeter
from atomo.hooks.states.bucket_layout import BucketLayout
from atomo.hooks.states.memories import add_up, blank, claimed, filled

__all__ = ["FACTORS", "Exchange"]

State = dict[str, Any]
FACTORS: Final = "factors"  # in a state: by "p/" or "q/" and the name of a parameter
ALL_GATHER: Final = "every rank must call gather(), which returns None on all but rank 0"


@final
@dataclass(frozen=True)
class ChunkWork(StageWork[Any, Any]):
    """A chunk in the stages of its average."""

    averaging: Averager | HostAverager
    stages: StagePipeline
    place: Callable[[], AbstractContextManager[None]]
    """Has a block compute on the side stream of a device."""
    chunk: Chunk
    scale: float
    last: bool
    done: Callable[[], None]
    step: int
    meter: NoiseMeter | None

    def encode(self) -> Any:
        with self.place():
            if self.meter is not None:
                self.meter.begin(self.step)
            run = self.stages.run_in_exchange
            return self.averaging.encode(self.chunk, self.scale, self.last, run)

    def exchange(self, encoded: Any) -> Any:
        with self.place():
            return self.averaging.exchange(encoded)

    def decode(self, received: Any) -> None:
        with self.place():
            self.averaging.decode(received, self.last)
            if self.meter is not None:
                self.meter.after(self.chunk, self.scale)
                if self.last:
                    self.stages.run_in_exchange(self.meter.close)

    def close(self) -> None:
        with self.place():
            self.done()


@final
@dataclass(frozen=True)
class MeetWork(StageWork[None, None]):
    """The meeting of all ranks before their first exchange."""

    averager: Averager

    def encode(self) -> None:
        """Has nothing to do."""

    def exchange(self, encoded: None) -> None:
        self.averager.meet()

    def decode(self, received: None) -> None:
        """Has nothing to do."""


@final
@dataclass(frozen=True)
class EndWork(StageWork[None, None]):
    """The end of a step of which no chunk was said to be the last."""

    averager: Averager

    def encode(self) -> None:
        self.averager.end()

    def exchange(self, encoded: None) -> None:
        """Has nothing to do."""

    def decode(self, received: None) -> None:
        self.averager.decode([], True)


@final
class Exchange:
    """The averages of one model's gradients, its memories, and what they cost."""

    def __init__(
        self,
        averager: Averager,
        parameters: Mapping[str, Tensor],
        owner: MemoryOwner,
        inside: HookHostGroup | None = None,
        layout: BucketLayout | None = None,
        about: str = "",
        meter: NoiseMeter | None = None,
    ) -> None:
        """Makes an exchange.

        Args:
            averager: does the work, in threads of this exchange.
            parameters: those of the model, by name.
            owner: of this rank.
            inside: the host of which the averager is for one rank; None: it is for all ranks.
            layout: the buckets of whoever submits, if they change over a resume.
            about: the codec and the memory, as `repr` has them.
            meter: of the codec's noise, where that damps steps.
        """
        self.meter = averager.meter = meter
        self._layout, self._about = layout, about
        self.names = {parameter: name for name, parameter in parameters.items()}
        self._averager, self._parameters, self.owner = averager, dict(parameters), owner
        self._averaging: Averager | HostAverager = averager
        if inside is not None:
            self._averaging = HostAverager(averager, inside)
        self._stages = StagePipeline(
            SerialExecutor("atomo-encode"),
            SerialExecutor("atomo-exchange"),
            SerialExecutor("atomo-decode"),
            # Ranks must not begin the sum inside a host and the mean that is given there in
            # different orders.
            sequential=inside is not None and inside.in_one_order,
        )
        # Of the caller's thread alone, as `submit`, `finish` and states are; the stages have the
        # averager meanwhile, and states are read when nothing is pending.
        self._pending: list[Future[None]] = []
        self._begun = False
        self._streams = SideStreams()

    @property
    def rank(self) -> int:
        """The number of this rank."""
        return self.owner.rank

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.owner.size

    @property
    def stats(self) -> Stats:
        """The costs so far: bytes, ratio, seconds."""
        return self._averager.stats

    @property
    def idle(self) -> bool:
        """True if nothing was submitted since `finish`."""
        return not self._pending

    def __repr__(self) -> str:
        """Names the codec, the memory, the ratio so far, and the ranks."""
        stats = self.stats
        sent = f"{stats.ratio:.1f}x fewer bytes in {stats.steps} steps"
        return f"Exchange({self._about}, {sent}, rank {self.rank} of {self.size})"

    @property
    def damping(self) -> float:
        """Returns the factor of the last step on the learning rate, by the noise of the codec."""
        return 1.0 if self.meter is None else self.meter.factor

    def at_rate(self, rate: float) -> None:
        """Tells the learning rate of the next step to a memory in units of the update."""
        self._averager.memory.set_learning_rate(rate)

    def submit(self, chunk: Chunk, scale: float, last: bool, done: Callable[[], None]) -> None:
        """Begins to average a chunk, in place; `done` is called when that is over, come what may.

        Args:
            chunk: some gradients, which nobody touches meanwhile.
            scale: what they were multiplied with.
            last: whether the step has no more.
            done: called in a thread.
        """
        if not self._begun:
            self._begin()
        device = next(iter(chunk.gradients.values())).device
        place = self._streams.after_current_stream(device)
        averaging, stages, step = self._averaging, self._stages, self._averager.step
        self._submit(
            ChunkWork(averaging, stages, place, chunk, scale, last, done, step, self.meter)
        )

    def _submit(self, work: StageWork[Any, Any]) -> None:
        # The future alone: what a chunk has become is free as soon as it has passed a stage.
        self._pending.append(self._stages.submit(work).done)

    def _begin(self) -> None:
        """Has the ranks that exchange meet before the first bucket of this process."""
        self._begun = True
        if self.owner.keeps:
            self._submit(MeetWork(self._averager))

    def end(self) -> None:
        """Ends a step of which no chunk was said to be the last.

        Raises:
            AtomoError: as of `finish`.
        """
        self._submit(EndWork(self._averager))  # through all stages, after the chunks in them
        self.finish()

    def finish(self) -> None:
        """Waits for all that was submitted.

        Raises:
            AtomoError: an average failed; this exchange is of no more use.
        """
        began = time.perf_counter()
        pending, self._pending = self._pending, []
        # All of it, also where a part failed: nothing of this step is left to meet the next one.
        errors = [error for one in pending if (error := one.exception())]
        self.stats.waited_s += time.perf_counter() - began
        if errors:
            raise errors[0]
        self._streams.join()  # on which the averages are written

    def state_dict(self, ranks: int | None = None) -> State:
        """Returns this rank's memory by parameter name, as tensors and plain types.

        Among several ranks of a host the first has one memory for all of it, and counts as a rank.
        torch.distributed.checkpoint takes it as it is, from all ranks together. To load what
        another number of ranks has saved, give that number, have the entries filled, then give
        them to `load_state_dict`.

        Args:
            ranks: how many ranks saved what is to be filled in; None: this is to be saved.
        """
        memory, parameters, owner = self._averager.memory, self._parameters, self.owner
        if ranks is None:
            own = {str(owner.memory): filled(memory, parameters)}
            return self._described(own, owner.memories)
        mine = claimed(owner.memory, owner.memories, ranks)
        return self._described({str(one): blank(memory, parameters) for one in mine}, ranks)

    def _described(self, memories: dict[str, dict[str, Tensor]], ranks: int) -> State:
        averager = self._averager
        about = averager.dense.state_dict() | {"ranks": ranks, "step": averager.step}
        about |= {"memory": averager.memory.id}
        if self._layout is not None:
            about |= self._layout.state_dict()
        if self.meter is not None:
            about |= self.meter.state_dict()
        # Nothing stands in for what others know: checkpoints take it from any rank that has it.
        return about | self._factors() | {"memories": memories} if self.owner.keeps else about

    def _factors(self) -> dict[str, Any]:
        """Returns the factors that the next step starts from, alike on all ranks, if it has any."""
        reduction, parameters = self._averager.reduction, self._parameters
        if not reduction.has_state:
            return {}
        shapes = tuple((name, parameter.shape) for name, parameter in parameters.items())
        bucket = bucket_of(0, shapes, self._averager.codecs)
        reduction.prepare(bucket, next(iter(parameters.values())).device)
        return {FACTORS: reduction.state_dict()}

    def gather(self) -> State | None:
        """Gathers the state of all ranks at rank 0; None elsewhere. All ranks must call it.

        `load_state_dict` takes it on any number of ranks.
        """
        if not self.owner.keeps:
            return None
        mine = filled(self._averager.memory, self._parameters)

        def work() -> list[dict[str, Tensor]]:
            self._averager.collective.meet("gather", ALL_GATHER)
            states: list[dict[str, Tensor]] = [{} for _ in range(self.owner.memories)]
            for name, entry in mine.items():  # one by one: each comes from all ranks at once
                data = np.frombuffer(save({name: entry.cpu().contiguous()}), np.uint8)
                # Read by all: what is left unread would come where the next step is expected.
                answers = [*self._averager.collective.gather(data, f"the memory of {name}")]
                if self.rank == 0:
                    for state, found in zip(states, answers, strict=True):
                        state |= load(found.tobytes())
            return states

        states = self._stages.run_in_exchange(work)
        if self.rank != 0:
            return None
        return self._described({str(n): one for n, one in enumerate(states)}, len(states))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replaces the memory and the number of the step.

        From another number of ranks, surplus memories are added to one rank, and ranks that have
        none begin at zero: the sum of all memories stays what it was. Buckets do not matter.

        Raises:
            CheckpointError: it is no such state, of another model or memory, of another
                `dense_below` or `dense_steps`, or lacks the memories of ranks that this one takes
                over.
        """
        averager = self._averager
        averager.dense.check(state)
        if state["memory"] != averager.memory.id:
            raise CheckpointError(
                f"the state is of memory {state['memory']!r}, not {averager.memory.id!r}: give "
                f"memory={state['memory']!r}"
            )
        found, owner = state.get("memories", {}), self.owner
        mine = claimed(owner.memory, owner.memories, state["ranks"]) if owner.keeps else []
        missing = [one for one in mine if str(one) not in found]
        if missing:
            raise CheckpointError(
                f"rank {self.rank} of {self.size} takes over the memories of ranks {mine} of "
                f"{state['ranks']}, and {missing} are not in the state: gather() at rank 0 has all"
            )
        states = [found[str(one)] for one in mine]
        averager.memory.load_state_dict(add_up(states, averager.memory, self._parameters))
        averager.step = state["step"]
        if self._layout is not None:
            self._layout.load_state_dict(state)
        if self.meter is not None:
            self.meter.load_state_dict(state)
        if FACTORS in state:
            averager.reduction.load_state_dict(state[FACTORS])
