"""The state of an exchange: the memories of its ranks, the number of the step, and factors."""

from collections.abc import Mapping
from typing import Any, Final, final

import numpy as np
from safetensors.torch import load, save
from torch import Tensor

from atomo.errors import CheckpointError
from atomo.exchange.engine.stages import StagePipeline
from atomo.hooks.adapter.averager import Averager
from atomo.hooks.adapter.chunks import bucket_of
from atomo.hooks.optimizers.noise_meter import NoiseMeter
from atomo.hooks.states.bucket_layout import BucketLayout
from atomo.hooks.states.memories import add_up, blank, claimed, filled
from atomo.hooks.states.memory_owner import MemoryOwner

__all__ = ["FACTORS", "ExchangeState", "StateDict"]

StateDict = dict[str, Any]
FACTORS: Final = "factors"  # in a state: by "p/" or "q/" and the name of a parameter
ALL_GATHER: Final = "every rank must call gather(), which returns None on all but rank 0"


@final
class ExchangeState:
    """Reads and replaces what an exchange must have again to go on after a checkpoint.

    The caller's thread alone uses it, when no chunk is in a stage.
    """

    def __init__(
        self,
        averager: Averager,
        parameters: Mapping[str, Tensor],
        owner: MemoryOwner,
        layout: BucketLayout | None,
        meter: NoiseMeter | None,
    ) -> None:
        """Makes the state of an exchange. Arguments: those of `Exchange`."""
        self._averager, self._parameters, self._owner = averager, dict(parameters), owner
        self._layout, self._meter = layout, meter

    def state_dict(self, ranks: int | None) -> StateDict:
        """Returns the state of this rank, or one of another number of ranks to be filled in."""
        memory, parameters, owner = self._averager.memory, self._parameters, self._owner
        if ranks is None:
            own = {str(owner.memory): filled(memory, parameters)}
            return self._described(own, owner.memories)
        numbers = claimed(owner.memory, owner.memories, ranks)
        return self._described({str(n): blank(memory, parameters) for n in numbers}, ranks)

    def _described(self, memories: dict[str, dict[str, Tensor]], ranks: int) -> StateDict:
        averager = self._averager
        about = averager.dense.state_dict() | {"ranks": ranks, "step": averager.step}
        about |= {"memory": averager.memory.id}
        if self._layout is not None:
            about |= self._layout.state_dict()
        if self._meter is not None:
            about |= self._meter.state_dict()
        # No placeholder at other ranks: a checkpoint takes an entry from any rank that has it.
        return about | self._factors() | {"memories": memories} if self._owner.keeps else about

    def _factors(self) -> dict[str, Any]:
        """Returns the factors that the next step starts from, alike on all ranks, if it has any."""
        reduction, parameters = self._averager.reduction, self._parameters
        if not reduction.has_state:
            return {}
        shapes = tuple((name, parameter.shape) for name, parameter in parameters.items())
        bucket = bucket_of(0, shapes, self._averager.codecs)
        reduction.prepare(bucket, next(iter(parameters.values())).device)
        return {FACTORS: reduction.state_dict()}

    def gather(self, stages: StagePipeline) -> StateDict | None:
        """Gathers the state of all ranks at rank 0, in the thread that exchanges; None elsewhere.

        All ranks call it together.
        """
        if not self._owner.keeps:
            return None
        averager, owner = self._averager, self._owner
        own = filled(averager.memory, self._parameters)

        def work() -> list[dict[str, Tensor]]:
            averager.collective.meet("gather", ALL_GATHER)
            states: list[dict[str, Tensor]] = [{} for _ in range(owner.memories)]
            for name, entry in own.items():  # in turn: each comes from all ranks together
                data = np.frombuffer(save({name: entry.cpu().contiguous()}), np.uint8)
                # Read by all: what is left unread would come where the next step is expected.
                answers = [*averager.collective.gather(data, f"the memory of {name}")]
                if owner.rank == 0:
                    for state, answer in zip(states, answers, strict=True):
                        state |= load(answer.tobytes())
            return states

        states = stages.run_in_exchange(work)
        if owner.rank != 0:
            return None
        return self._described({str(n): state for n, state in enumerate(states)}, len(states))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replaces the memory and the number of the step. Errors: those of `Exchange`."""
        averager = self._averager
        averager.dense.check(state)
        if state["memory"] != averager.memory.id:
            raise CheckpointError(
                f"the state is of memory {state['memory']!r}, not {averager.memory.id!r}: give "
                f"memory={state['memory']!r}"
            )
        saved, owner = state.get("memories", {}), self._owner
        numbers = claimed(owner.memory, owner.memories, state["ranks"]) if owner.keeps else []
        missing = [number for number in numbers if str(number) not in saved]
        if missing:
            raise CheckpointError(
                f"rank {owner.rank} of {owner.size} takes over the memories of ranks {numbers} of "
                f"{state['ranks']}, and {missing} are not in the state: gather() at rank 0 has all"
            )
        states = [saved[str(number)] for number in numbers]
        averager.memory.load_state_dict(add_up(states, averager.memory, self._parameters))
        averager.step = state["step"]
        if self._layout is not None:
            self._layout.load_state_dict(state)
        if self._meter is not None:
            self._meter.load_state_dict(state)
        if FACTORS in state:
            averager.reduction.load_state_dict(state[FACTORS])
