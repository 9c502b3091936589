"""The exchange of a hook or an optimizer, which averages gradients in background threads."""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, final

from torch import Tensor

from atomo.core.devices import SideStreams
from atomo.exchange.collectives.intra_host_group import IntraHostGroup
from atomo.exchange.engine.stages import HeldGradients, SerialExecutor, StagePipeline, StageWork
from atomo.hooks.adapter.averager import Averager, Stats
from atomo.hooks.adapter.chunks import Chunk
from atomo.hooks.adapter.host_averager import HostAverager
from atomo.hooks.optimizers.noise_meter import NoiseMeter
from atomo.hooks.states.bucket_layout import BucketLayout
from atomo.hooks.states.exchange_state import ExchangeState, StateDict
from atomo.hooks.states.memory_owner import MemoryOwner

__all__ = ["Exchange"]


@final
@dataclass(frozen=True)
class ChunkWork(StageWork[Any, Any]):
    """A chunk in the stages of its average."""

    averaging: Averager | HostAverager
    stages: StagePipeline
    queue: HeldGradients[Any]
    """The chunks of this step that `averaging` has prepared."""
    place: Callable[[], AbstractContextManager[None]]
    """Returns a context in which a block computes on the side stream of a device."""
    chunk: Chunk
    last: bool
    done: Callable[[], None]
    step: int
    meter: NoiseMeter | None

    def encode(self) -> Any:
        with self.place():
            if self.meter is not None:
                self.meter.begin(self.step)
            ready = self.queue.push(self.averaging.prepare(self.chunk, self.last))
            if self.last:
                ready += self.queue.release()
            return self.averaging.encode(ready, self.stages.run_in_exchange)

    def exchange(self, encoded: Any) -> Any:
        with self.place():
            return self.averaging.exchange(encoded)

    def decode(self, received: Any) -> None:
        with self.place():
            self.averaging.decode(received, self.last)
            if self.meter is not None:
                self.meter.after(self.chunk, self.chunk.scale)
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
    """The end of a step in which no chunk was submitted as the last."""

    averager: Averager

    def encode(self) -> None:
        self.averager.end()

    def exchange(self, encoded: None) -> None:
        """Has nothing to do."""

    def decode(self, received: None) -> None:
        self.averager.decode([], True)


@final
class Exchange:
    """The averages of the gradients of one model, its memories, and the costs."""

    def __init__(
        self,
        averager: Averager,
        parameters: Mapping[str, Tensor],
        owner: MemoryOwner,
        inside: IntraHostGroup | None = None,
        layout: BucketLayout | None = None,
        about: str = "",
        meter: NoiseMeter | None = None,
    ) -> None:
        """Makes an exchange.

        Args:
            averager: the averager that the threads of this exchange run.
            parameters: the parameters of the model, by name.
            owner: the owner of this rank's memory.
            inside: the ranks of this host; the averager is then over the first ranks of all hosts.
                None: the averager is over all ranks.
            layout: the layout of the submitted buckets, if a resume changes the buckets.
            about: the codec and the memory, as in `repr`.
            meter: the meter of the noise of the codec, if the noise damps steps.
        """
        self.meter = averager.meter = meter
        self._about = about
        self.names = {parameter: name for name, parameter in parameters.items()}
        self._averager, self.owner = averager, owner
        self._state = ExchangeState(averager, parameters, owner, layout, meter)
        self._averaging: Averager | HostAverager = averager
        if inside is not None:
            self._averaging = HostAverager(averager, inside)
        self._stages = StagePipeline(
            SerialExecutor("atomo-encode"),
            SerialExecutor("atomo-exchange"),
            SerialExecutor("atomo-decode"),
            # Ranks must begin the sums and the broadcasts inside a host in one order.
            sequential=inside is not None and inside.in_one_order,
        )
        self._held: HeldGradients[Any] = HeldGradients(averager.memory.needs_norm)
        # Only the caller's thread uses the following attributes, `submit`, `finish` and states. The
        # stages use the averager meanwhile; states are read when nothing is pending.
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
        """The factor on the learning rate of the last step, from the noise of the codec."""
        return 1.0 if self.meter is None else self.meter.factor

    def at_rate(self, rate: float) -> None:
        """Sets the learning rate of the next step, for a memory in units of the update."""
        self._averager.memory.set_learning_rate(rate)

    def submit(self, chunk: Chunk, scale: float, last: bool, done: Callable[[], None]) -> None:
        """Begins to average a chunk, in place.

        Args:
            chunk: the gradients. The caller must not use them before `done` is called.
            scale: the factor by which the gradients were multiplied.
            last: True if it is the last chunk of the step.
            done: called in a background thread after the average, also after an error.
        """
        if not self._begun:
            self._begin()
        device = next(iter(chunk.gradients.values())).device
        place = self._streams.after_current_stream(device)
        chunk = chunk if scale == chunk.scale else replace(chunk, scale=scale)
        averaging, stages, step = self._averaging, self._stages, self._averager.step
        self._submit(
            ChunkWork(averaging, stages, self._held, place, chunk, last, done, step, self.meter)
        )

    def _submit(self, work: StageWork[Any, Any]) -> None:
        # Only the future: so the result of a stage is freed once the next stage has it.
        self._pending.append(self._stages.submit(work).done)

    def _begin(self) -> None:
        """Has the ranks that exchange meet before the first bucket of this process."""
        self._begun = True
        if self.owner.keeps:
            self._submit(MeetWork(self._averager))

    def end(self) -> None:
        """Ends a step in which no chunk was submitted as the last.

        Raises:
            AtomoError: as from `finish`.
        """
        self._submit(EndWork(self._averager))  # through all stages, after the chunks in them
        self.finish()

    def finish(self) -> None:
        """Waits for all submitted chunks.

        Raises:
            AtomoError: an average failed; this exchange cannot be used any more.
        """
        began = time.perf_counter()
        pending, self._pending = self._pending, []
        # All futures, also after an error: no work of this step may overlap with the next step.
        errors = [error for future in pending if (error := future.exception())]
        self.stats.waited_s += time.perf_counter() - began
        if errors:
            raise errors[0]
        self._streams.join()  # the averages are written on side streams

    def state_dict(self, ranks: int | None = None) -> StateDict:
        """Returns this rank's memory by parameter name, as tensors and plain types.

        If several ranks of a host average as one worker, the first rank has the memory of the host.
        torch.distributed.checkpoint saves the states of all ranks as they are. To load a state of
        another number of ranks, call this with that number, let torch.distributed.checkpoint fill
        in the entries, and pass them to `load_state_dict`.

        Args:
            ranks: the number of ranks that saved the state to load; None: this state is saved.
        """
        return self._state.state_dict(ranks)

    def gather(self) -> StateDict | None:
        """Gathers the state of all ranks at rank 0; None on other ranks. All ranks must call it.

        `load_state_dict` takes the state on any number of ranks.
        """
        return self._state.gather(self._stages)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replaces the memory and the number of the step.

        If another number of ranks saved the state, surplus memories are added to one rank, and
        ranks without a memory begin at zero: the sum of all memories does not change. Buckets may
        differ.

        Raises:
            CheckpointError: it is no such state, has another model, memory, `dense_below` or
                `dense_steps`, or lacks memories that this rank takes over.
        """
        self._state.load_state_dict(state)
