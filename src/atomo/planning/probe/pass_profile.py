"""Times of the gradients on every rank of a job, while all ranks compute."""

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
from atomo.planning.probe.timer import SynchronizedTimer

__all__ = ["DryRun", "measure_profile"]

WARM_UP: Final = 2  # passes that are not timed

Push = Callable[[Bucket, Float[Tensor, " n"]], None]
"""Takes a bucket as soon as its gradient is complete."""


@runtime_checkable
class DryRun(Protocol):
    """One rank's steps that leave no trace: no weight changes, and nothing is exchanged."""

    @property
    def buckets(self) -> Sequence[Bucket]:
        """A bucket for each parameter, from the last to the first."""

    @property
    def workers(self) -> int:
        """Number of ranks that compute gradients: the ranks with the highest numbers."""

    @property
    def computes(self) -> bool:
        """True if this rank computes gradients; a master does not."""

    def run(self, step: int, push: Push) -> None:
        """Runs the passes of a step: batch, loss, gradients."""

    def update(self, step: int) -> None:
        """Takes the optimizer's step on a copy of the weights."""


@final
@dataclass
class Stopwatch:
    """Times of one rank's passes, seconds from the begin of each pass, and the first pass's
    gradient.
    """

    buckets: int
    ready: list[list[float]] = field(default_factory=list)
    """Time of each bucket, by number, and of the end of the pass."""
    gradient: dict[str, Tensor] = field(default_factory=dict)
    started: float = 0.0

    def start(self) -> None:
        """Begins a pass."""
        self.ready.append([0.0] * self.buckets)
        self.started = time.perf_counter()

    def note(self, bucket: Bucket, flat: Float[Tensor, " n"]) -> None:
        """Notes the time of a bucket."""
        self.ready[-1][bucket.number] = time.perf_counter() - self.started
        if len(self.ready) == 1:
            (slot,) = bucket.slots
            self.gradient[slot.name] = flat.detach().clone().view(slot.shape)

    def stop(self) -> None:
        """Notes the end of a pass."""
        self.ready[-1].append(time.perf_counter() - self.started)


def measure_profile(dry_run: DryRun, timer: SynchronizedTimer, times: int) -> Profile:
    """Times the passes of all workers, and the optimizer's step.

    Args:
        dry_run: this rank's steps.
        timer: the ranks.
        times: number of timed passes.

    Returns:
        The mean times of a step that waits for the slowest rank. All times are the same on all
        ranks; the gradient is this rank's.
    """
    stopwatch = Stopwatch(len(dry_run.buckets))
    for step in range(1, WARM_UP + times + 1):
        timer.barrier()
        stopwatch.start()
        if dry_run.computes or step == 1:  # a master needs a gradient to measure codecs on
            dry_run.run(step, stopwatch.note)
        stopwatch.stop()
    rows = timer.gather([t for row in stopwatch.ready[WARM_UP:] for t in row], "the passes")
    updates = timer.gather([measure_update(dry_run, times)], "the optimizer")
    workers = rows[len(rows) - dry_run.workers :]  # a master is rank 0
    names = [slot.name for bucket in reversed(dry_run.buckets) for slot in bucket.slots]
    gradient = {name: stopwatch.gradient[name] for name in names}
    update_s = max(seconds for (seconds,) in updates)
    return profile_of(workers, len(dry_run.buckets) + 1, gradient, update_s)


def profile_of(
    workers: list[list[float]], columns: int, gradient: dict[str, Tensor], update_s: float
) -> Profile:
    """Builds a profile from the workers' times: of each worker the rows of its passes, one after
    another.
    """
    passes = torch.tensor(workers, dtype=torch.float64).view(len(workers), -1, columns)
    slowest_s = float(passes[:, :, -1].amax(0).mean())
    mean = passes.mean((0, 1))
    times: list[float] = (mean * (slowest_s / float(mean[-1]))).tolist()
    *ready, end = times
    first, whole = min(ready), max(ready)
    return Profile(
        first
        + end
        - whole,  # time after the backward pass delays the step as much as time before it
        tuple(moment - first for moment in ready),
        whole - first,
        gradient,
        update_s,
    )


def measure_update(dry_run: DryRun, times: int) -> float:
    """Returns seconds of the optimizer's step."""
    times_s = []
    for step in range(1, times + 2):
        started = time.perf_counter()
        dry_run.update(step)
        times_s.append(time.perf_counter() - started)
    return statistics.fmean(times_s[1:])
