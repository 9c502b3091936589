"""Measurements of a job by all its ranks: passes, codecs and links, and errors of codecs.

Everything runs on a copy of the model, and random numbers come from generators of their own: no
weight, statistic or random number of the run changes.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from atomo.codecs import Codec
from atomo.config.comm_rules import has_master
from atomo.config.comm_types import PARAMETER_SERVER
from atomo.exchange import Direct
from atomo.fusion import Bucket
from atomo.planning import Costs, Scenario
from atomo.planning.compression_errors import CompressionErrors, measure_compression_errors
from atomo.planning.probe import (
    Probe,
    SynchronizedTimer,
    links_for,
    measure_links,
    measure_profile,
    measure_rank_costs,
    measure_slowing,
    preserved_state,
)
from atomo.planning.probe.pass_profile import Push
from atomo.training.job.job import Job
from atomo.training.optim.round_optimizer import make_flat_optimizer
from atomo.training.plans.allowance import TimeLeft
from atomo.training.step.forward_backward import ForwardBackward
from atomo.transports import Transport

__all__ = [
    "JobDryRun",
    "JobMeasurements",
    "in_time",
    "measure_job",
    "probe_job",
]

REPETITIONS: Final = 2
HALF: Final = 0.5  # share of the time for costs of codecs; errors and trials have the other half

Work = TypeVar("Work")

Method = tuple[Codec[Any], str]
"""A codec, and the reduction that averages its frames."""


@final
class JobDryRun:
    """One rank's steps of a job, on a copy of its model."""

    def __init__(self, job: Job, rank: int, device: torch.device) -> None:
        """Copies the job's model.

        Args:
            job: with a bucket for each parameter.
            rank: selects the samples; rank 0 may be a master.
            device: of this rank.
        """
        worker = rank + (not has_master(job.settings.comm_type))
        self.buckets, self.workers, self.computes = job.buckets, job.workers, worker > 0
        settings = replace(job.settings, dump_every=0)
        copy = replace(job, settings=settings, model=deepcopy(job.model))
        self._push: Push = lambda bucket, flat: None
        self._passes = ForwardBackward(copy, max(1, worker), device, self._take)
        self.model, weights = self._passes.model, self._passes.weights.clone()
        self._optimizer = make_flat_optimizer(weights, job, averages=False)

    def run(self, step: int, push: Push) -> None:
        """Runs the passes of a step: batch, loss, gradients."""
        self._push = push
        self._passes.run(step)

    def update(self, step: int) -> None:
        """Takes the optimizer's step on a copy of the weights."""
        self._optimizer.gradient.zero_()
        self._optimizer.step(step)

    def close(self) -> None:
        """Frees memory after the last step."""
        self._passes.close()

    def _take(self, bucket: Bucket, flat: Float[Tensor, " n"]) -> None:
        self._push(bucket, flat)


def in_time(
    timer: SynchronizedTimer, works: Iterable[Work], limit: TimeLeft | None
) -> Iterator[Work]:
    """Yields pieces of work while rank 0 has time for another as long as the longest so far.

    All ranks get the same pieces, and at least one.
    """
    longest_s = 0.0
    for number, work in enumerate(works):
        if limit is not None and not timer.agree(number == 0 or limit.fits(longest_s)):
            return
        began_s = limit.elapsed_s if limit else 0.0
        yield work
        longest_s = max(longest_s, (limit.elapsed_s if limit else 0.0) - began_s)


def probe_job(
    job: Job,
    transport: Transport,
    device: torch.device,
    methods: Sequence[Method],
    times: int,
    *,
    comm_types: Collection[str] = (),
    under_way: int = 1,
    limit: TimeLeft | None = None,
) -> Probe:
    """Measures passes, codecs and links on all ranks at the same time.

    The probe is the same on all ranks, except the gradient, which is each rank's own.

    No weight, statistic or random number changes.

    Args:
        job: with a bucket for each parameter.
        transport: connects the ranks; all ranks must call this function.
        device: of this rank.
        methods: codecs and reductions to measure.
        times: number of repetitions of each measurement.
        comm_types: communicators; their links are measured. Empty: the job's communicator.
        under_way: number of overlapping messages that share a latency.
        limit: time for the costs by rank 0's clock. Methods are measured in order, at least one,
            until the time is over; None: all methods.

    Raises:
        ConfigError: a codec does not go with its reduction.
        TransportError: a rank has died, or does not answer.
    """
    s, master = job.settings, has_master(job.settings.comm_type)
    timer = SynchronizedTimer(Direct(transport, s.timeout))
    dry_run = JobDryRun(job, transport.rank, device)
    with preserved_state(dry_run.model):
        profile = measure_profile(dry_run, timer, times)
        slowing = 1.0 if master else measure_slowing(dry_run, timer, device, times)
        costs = tuple(
            (reduction, measure_rank_costs(timer, codec, reduction, profile, times, s.compression,
                                   master=master))
            for codec, reduction in in_time(timer, methods, limit)
        )  # fmt: skip
    dry_run.close()
    names = links_for(comm_types or (s.comm_type,), [cost for _, cost in costs])
    links = measure_links(
        timer, transport, s.timeout, names, under_way=under_way, most_bytes=4 * job.entries
    )
    transport.drain(s.timeout)
    return Probe(profile, slowing, links, costs)


@final
@dataclass(frozen=True)
class JobMeasurements:
    """Measurements that all ranks share, of tensors from the last parameter to the first."""

    scenario: Scenario
    costs: tuple[Costs, ...]
    """Costs of each codec."""
    errors: tuple[CompressionErrors, ...]
    """Errors of each codec; empty: not measured."""
    numbers: tuple[float, ...] = ()
    """All measurements in the order of `Probe.numbers`."""


def measure_job(
    job: Job,
    transport: Transport,
    device: torch.device,
    codecs: Sequence[Codec[Any]],
    *,
    under_way: int = 1,
    errors: bool = True,
    limit: TimeLeft | None = None,
) -> JobMeasurements:
    """Measures together with all other ranks; the result is the same on all.

    Args:
        job: with a bucket for each parameter, and any codec.
        transport: connects the ranks.
        device: of this rank.
        codecs: the codecs to measure.
        under_way: number of overlapping messages of a step.
        errors: True to measure the codecs' errors.
        limit: time by rank 0's clock. Codecs are measured in order, at least one, until the time
            is over; None: all codecs.
    """
    name = job.settings.comm_type
    reduction = "Allgather" if name == PARAMETER_SERVER else name  # workers gather for a master
    methods = [(codec, reduction) for codec in codecs]
    half = limit and TimeLeft(HALF * limit.seconds)
    probe = probe_job(job, transport, device, methods, REPETITIONS, under_way=under_way, limit=half)
    gradient, costed = probe.profile.gradient, codecs[: len(probe.costs)]
    shared = shared_errors(job, transport, costed, gradient, limit) if errors else ()
    costs = tuple(costs for _, costs in probe.costs[: len(shared) or None])
    return JobMeasurements(probe.scenario(job.workers), costs, shared, probe.numbers)


def shared_errors(
    job: Job,
    transport: Transport,
    codecs: Sequence[Codec[Any]],
    gradient: dict[str, Tensor],
    limit: TimeLeft | None = None,
) -> tuple[CompressionErrors, ...]:
    """Measures errors of codecs within the time limit: means over the workers' gradients."""
    worker = transport.rank + (not has_master(job.settings.comm_type))
    tensors = len(gradient)
    timer = SynchronizedTimer(Direct(transport, job.settings.timeout))
    own: list[float] = []
    for codec in in_time(timer, codecs, limit):
        measured = measure_compression_errors(codec, gradient, worker).errors if worker else None
        own += measured or [0.0] * tensors
    rows = timer.gather(own, "errors of codecs")
    codecs = codecs[: len(own) // tensors]
    workers = torch.tensor(rows[len(rows) - job.workers :], dtype=torch.float64)
    means = workers.mean(0).view(len(codecs), tensors).tolist()
    return tuple(
        CompressionErrors.of(codec, tuple(row)) for codec, row in zip(codecs, means, strict=True)
    )
