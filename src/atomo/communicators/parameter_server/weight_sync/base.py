"""The contract of a way down: how the workers come to the weights of the step that is open.

The master's weights have a version: the number of steps that have been taken. Step t opens at
version t - 1, and a worker computes its gradient there. A way down says with which frames a worker
that is not busy comes to that version; who was busy when steps opened has missed some of it. What
it returns is sent in order, and nothing else goes to that worker in between.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, final, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from atomo.wire import Bytes, Flag

__all__ = ["CountedStep", "Replica", "WeightSync"]


@runtime_checkable
class Replica(Protocol):
    """Weights with their optimiser, on the CPU: what a worker needs to repeat the master's steps.

    Equal gradients, factors and states give equal bits.
    """

    weights: Float[Tensor, " n"]
    """Stepped in place."""
    gradient: Float[Tensor, " n"]
    """What the next step takes."""

    def step(self, step: int, factor: float = 1.0) -> None:
        """Takes step number `step`, `factor` times as long, with what lies in `gradient`."""

    def state_dict(self) -> dict[str, Tensor]:
        """What the optimiser keeps from step to step."""

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Replaces its state by what `state_dict` returned."""


@final
@dataclass(frozen=True)
class CountedStep:
    """A step that the master took."""

    step: int
    counted: Mapping[int, Mapping[int, Bytes]]
    """The frames of those that counted, by worker, in rank order, and by bucket."""
    factor: float
    """On the learning rate."""
    shares: tuple[float, ...] = ()
    """The weight of each gradient in the step, or one for all, where that is not what it was at the
    start."""


class WeightSync(ABC):
    """The master's end of a way down. Abstract; subclasses are final."""

    notes: list[str]
    """What a person should know, until somebody takes it out."""

    def initial_query(self, worker: int, weights: Float[Tensor, " n"]) -> list[Bytes]:
        """What a worker is asked before the first step of a run that starts anew."""
        del worker, weights
        return []

    @abstractmethod
    def open(self, step: int, weights: Float[Tensor, " n"]) -> None:
        """A step is open at these weights, which change in place when it is taken."""

    @abstractmethod
    def commands(self, flags: Mapping[int, Flag]) -> list[tuple[int, Bytes]]:
        """What has these workers, in rank order, compute the gradient of the open step.

        Returns:
            To whom, and what, in the order of sending. One of the frames for each worker has its
            flag.
        """

    def commit(self, taken: CountedStep) -> None:
        """The open step was taken: its weights are now those of the next version."""
        del taken

    def reset_worker(self, worker: int) -> None:
        """A worker is gone: it needs nothing any more."""
        del worker

    def checkpoint_frames(self, workers: Sequence[int]) -> Mapping[int, list[Bytes]]:
        """What each worker gets when nobody computes, before a checkpoint or the end."""
        return {worker: [] for worker in workers}

    def awaits(self, worker: int) -> bool:
        """Whether a worker owes the hash of its weights."""
        del worker
        return False

    def on_hash(self, worker: int, frame: Bytes) -> None:
        """A worker answered with the hash of its weights.

        Raises:
            FrameError: nobody had asked, or it is none.
        """
        del worker, frame
