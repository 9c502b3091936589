"""When gradients are there on every rank of a job, while all of them compute."""

import statistics
import time
from dataclasses import dataclass, field
from typing import Final, final

import torch
from jaxtyping import Float
from torch import Tensor

from atomo.fusion import Bucket
from atomo.planning import Profile
from atomo.profiling.encoder import Encoder
from atomo.profiling.together import Together
from atomo.training.job import Job
from atomo.training.optimizer import FlatOptimizer
from atomo.training.passes import Passes

__all__ = ["measure_job", "measure_slowing"]

WARM_UP: Final = 2  # passes that are not timed


@final
@dataclass
class Stopwatch:
    """The times of one rank's passes, seconds from their begins."""

    buckets: int
    ready: list[list[float]] = field(default_factory=list)
    """When each bucket was there, by number, and when all was done."""
    started: float = 0.0

    def start(self) -> None:
        """Begins a pass."""
        self.ready.append([0.0] * self.buckets)
        self.started = time.perf_counter()

    def note(self, bucket: Bucket, flat: Float[Tensor, " n"]) -> None:
        """A bucket is there."""
        del flat
        self.ready[-1][bucket.number] = time.perf_counter() - self.started

    def stop(self) -> None:
        """The pass has ended."""
        self.ready[-1].append(time.perf_counter() - self.started)


def measure_job(job: Job, together: Together, worker: int, times: int) -> Profile:
    """One worker's passes, as in a step of the job: batch, loss, gradients; and the optimiser's
    step. No weight changes, and nothing is exchanged but times.

    Args:
        job: with a bucket for each parameter (`--fusion layer`).
        together: the ranks.
        worker: whose samples these are, 1..workers; 0: of a master, which computes nothing while
            the workers do.
        times: how many passes are timed.

    Returns:
        What a step that waits for the slowest rank takes, in the mean, alike on all ranks but for
        the gradient.
    """
    watch = Stopwatch(len(job.buckets))
    passes = Passes(job, max(1, worker), torch.device("cpu"), watch.note)
    for step in range(1, WARM_UP + times + 1):
        together.begin()
        watch.start()
        if worker or step == 1:  # a master must know a gradient as well
            passes.run(step)
        watch.stop()
    rows = together.share([t for row in watch.ready[WARM_UP:] for t in row], "the passes")
    updates = together.share([measure_update(job, passes.weights, times)], "the optimiser")
    workers = rows[len(rows) - job.workers :]  # a master is rank 0
    gradient = {
        name: parameter.grad.detach().clone()
        for name, parameter in passes.model.named_parameters()
        if parameter.grad is not None
    }
    update_s = max(one for (one,) in updates)
    return profile_of(workers, len(job.buckets) + 1, gradient, update_s)


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


def measure_update(job: Job, weights: Float[Tensor, " n"], times: int) -> float:
    """Seconds of the optimiser's step, taken on a copy."""
    optimizer = FlatOptimizer(weights.clone(), job.buckets, job.settings, job.rate, averages=False)
    taken = []
    for step in range(1, times + 2):
        started = time.perf_counter()
        optimizer.gradient.zero_()
        optimizer.step(step)
        taken.append(time.perf_counter() - started)
    return statistics.fmean(taken[1:])


def measure_slowing(job: Job, together: Together, worker: int, times: int) -> float:
    """Seconds by which a second of encoding delays the passes that it runs beside, 0..1.

    Passes are timed alone, and beside a thread that encodes again and again; what encoding takes is
    timed on all ranks at once.

    Args:
        job: what is trained.
        together: the ranks.
        worker: whose samples these are.
        times: how many passes are timed, both ways.
    """
    passes = Passes(job, max(1, worker), torch.device("cpu"), lambda bucket, flat: None)
    encoder = Encoder(sum(bucket.size for bucket in job.buckets))

    def compute() -> None:
        for step in range(1, times + 1):
            passes.run(step)

    def encode() -> None:
        for _ in range(times):
            encoder.encode()

    compute()
    alone_s, one_s = together.slowest_s(compute), together.slowest_s(encode) / times
    with encoder:
        beside_s = together.slowest_s(compute)
    counts = together.share([float(encoder.count)], "encodings")
    encoded_s = one_s * statistics.fmean(count for (count,) in counts)
    return min(1.0, max(0.0, (beside_s - alone_s) / max(encoded_s, one_s)))
