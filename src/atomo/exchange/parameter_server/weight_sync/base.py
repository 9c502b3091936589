"""Contract of a weight sync, which brings workers to the weights of the open step.

The version of the master's weights is the number of steps taken. Step t opens at version t - 1, and
workers compute their gradients there. A weight sync makes the frames that bring an idle worker to
that version; a worker that was busy has missed some steps. The frames are sent in order, with no
other frame to that worker in between.
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
    """Weights on the CPU with their optimizer, on which a worker repeats the master's steps.

    Equal gradients, factors and states give equal bits.
    """

    weights: Float[Tensor, " n"]
    """Flat weights, updated in place."""
    gradient: Float[Tensor, " n"]
    """Gradient of the next step."""

    def step(self, step: int, factor: float = 1.0) -> None:
        """Takes step number `step` with `gradient`, at `factor` times the learning rate."""

    def state_dict(self) -> dict[str, Tensor]:
        """Returns the state of the optimizer."""

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restores a state of `state_dict`."""


@final
@dataclass(frozen=True)
class CountedStep:
    """Step of the master with its counted gradients."""

    step: int
    counted: Mapping[int, Mapping[int, Bytes]]
    """Frames of the counted gradients by worker, in rank order, and by bucket."""
    factor: float
    """Factor on the learning rate."""
    shares: tuple[float, ...] = ()
    """Weight of each gradient, or one weight for all; empty: as at the start of the run."""


class WeightSync(ABC):
    """Master's end of a weight sync. Abstract; subclasses are final."""

    notes: list[str]
    """Notes for the user; the reader clears them."""

    def initial_query(self, worker: int, weights: Float[Tensor, " n"]) -> list[Bytes]:
        """Returns the query to a worker before the first step of a new run."""
        del worker, weights
        return []

    @abstractmethod
    def open(self, step: int, weights: Float[Tensor, " n"]) -> None:
        """Opens a step at these weights, which change in place at the end of the step."""

    @abstractmethod
    def commands(self, flags: Mapping[int, Flag]) -> list[tuple[int, Bytes]]:
        """Returns the frames after which these workers, in rank order, compute the gradient of the
        open step.

        Returns:
            Rank and frame, in the order of sending. One frame for each worker has its flag.
        """

    def commit(self, counted_step: CountedStep) -> None:
        """Records that the master took the open step: the weights are now of the next version."""
        del counted_step

    def reset_worker(self, worker: int) -> None:
        """Deletes the version and the query of a worker that died or could not follow."""
        del worker

    def checkpoint_frames(self, workers: Sequence[int]) -> Mapping[int, list[Bytes]]:
        """Returns the frames to each worker before a checkpoint or the end, while no worker
        computes.
        """
        return {worker: [] for worker in workers}

    def awaits(self, worker: int) -> bool:
        """True if a worker owes the hash of its weights."""
        del worker
        return False

    def on_hash(self, worker: int, frame: Bytes) -> None:
        """Compares the hash of a worker's weights with the master's.

        Raises:
            FrameError: no query is open, or the frame holds no hash.
        """
        del worker, frame
