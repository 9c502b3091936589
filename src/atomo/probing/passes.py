"""When gradients are there on every rank of a job, while all of them compute."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, final, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from atomo.fusion import Bucket
from atomo.planning import Profile
from atomo.probing.together import Together

__all__ = ["Trial", "measure_profile"]

WARM_UP: Final = 2  # passes that are not timed

Push = Callable[[Bucket, Float[Tensor, " n"]], None]
"""Takes a bucket as soon as its gradient is complete."""


@runtime_checkable
class Trial(Protocol):
    """One rank's steps, of which nothing remains: no weight changes, and nothing is exchanged."""

    @property
    def buckets(self) -> Sequence[Bucket]:
        """One for each parameter, from the last to the first."""

    @property
    def workers(self) -> int:
        """Ranks that compute gradients, the last of all."""

    @property
    def computes(self) -> bool:
        """Whether this rank is one of them; a master is not."""

    def run(self, step: int, push: Push) -> None:
        """The passes of a step: batch, loss, gradients."""

    def update(self, step: int) -> None:
        """The optimiser's step, taken on a copy."""


@final
@dataclass
class Stopwatch:
    """The times of one rank's passes, seconds from their begins, and the first one's gradient."""

    buckets: int
    ready: list[list[float]] = field(default_factory=list)
    """When each bucket was there, by number, and when all was done."""
    gradient: dict[str, Tensor] = field(default_factory=dict)
    started: float = 0.0

    def start(self) -> None:
        """Begins a pass."""
        self.ready.append([0.0] * self.buckets)
        self.started = time.perf_counter()

    def note(self, bucket: Bucket, flat: Float[Tensor, " n"]) -> None:
        """A bucket is there."""
        self.ready[-1][bucket.number] = time.perf_counter() - self.started
        if len(self.ready) == 1:
            (slot,) = bucket.slots
            self.gradient[slot.name] = flat.detach().clone().view(slot.shape)

    def stop(self) -> None:
        """The pass has ended."""
        self.ready[-1].append(time.perf_counter() - self.started)


def measure_profile(trial: Trial, together: Together, times: int) -> Profile:
    """The passes of all workers, and the optimiser's step.

    Args:
        trial: this rank's steps.
        together: the ranks.
        times: how many passes are timed.

    Returns:
        What a step that waits for the slowest rank takes, in the mean, alike on all ranks but for
        the gradient.
    """
    watch = Stopwatch(len(trial.buckets))
    for step in range(1, WARM_UP + times + 1):
        together.begin()
        watch.start()
        if trial.computes or step == 1:  # a master must know a gradient as well
            trial.run(step, watch.note)
        watch.stop()
    rows = together.share([t for row in watch.ready[WARM_UP:] for t in row], "the passes")
    updates = together.share([measure_update(trial, times)], "the optimiser")
    workers = rows[len(rows) - trial.workers :]  # a master is rank 0
    names = [slot.name for bucket in reversed(trial.buckets) for slot in bucket.slots]
    gradient = {name: watch.gradient[name] for name in names}
    update_s = max(one for (one,) in updates)
    return profile_of(workers, len(trial.buckets) + 1, gradient, update_s)


def profile_of(
    workers: list[list[float]], columns: int, gradient: dict[str, Tensor], update_s: float
) -> Profile:
    """A profile of the times of workers: of each, the rows of its passes one after another."""
    passes = torch.tensor(workers, dtype=torch.float64).view(len(workers), -1, columns)
    slowest_s = float(passes[:, :, -1].amax(0).mean())
    mean = passes.mean((0, 1))
    times: list[float] = (mean * (slowest_s / float(mean[-1]))).tolist()
    *ready, end = times
    first, whole = min(ready), max(ready)
    return Profile(
        first + end - whole,  # what follows the backward pass delays the step as what precedes it
        tuple(one - first for one in ready),
        whole - first,
        gradient,
        update_s,
    )


def measure_update(trial: Trial, times: int) -> float:
    """Seconds of the optimiser's step."""
    taken = []
    for step in range(1, times + 2):
        started = time.perf_counter()
        trial.update(step)
        taken.append(time.perf_counter() - started)
    return statistics.fmean(taken[1:])
