"""What a job is made of, measured by all its ranks before its first step."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any, TypeVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from atomo.codecs import Codec
from atomo.communicators import Direct
from atomo.fusion import Bucket
from atomo.probing import (
    Probe,
    SynchronizedTimer,
    links_for,
    measure_links,
    measure_profile,
    measure_rank_costs,
    measure_slowing,
    preserved_state,
)
from atomo.probing.pass_profile import Push
from atomo.roles import has_master
from atomo.training.allowance import TimeLeft
from atomo.training.job import Job
from atomo.training.optimizer import FlatOptimizer
from atomo.training.passes import Passes
from atomo.transports import Transport

__all__ = ["JobDryRun", "in_time", "probe_job"]

Work = TypeVar("Work")

Way = tuple[Codec[Any], str]
"""A codec, and the reduction that it goes with."""


@final
class JobDryRun:
    """One rank's steps of a job, on a copy of its model."""

    def __init__(self, job: Job, rank: int, device: torch.device) -> None:
        """A dry_run.

        Args:
            job: with a bucket for each parameter.
            rank: whose samples these are, and whether it is a master.
            device: where this rank computes.
        """
        worker = rank + (not has_master(job.settings.comm_type))
        self.buckets, self.workers, self.computes = job.buckets, job.workers, worker > 0
        settings = replace(job.settings, dump_every=0)
        copy = replace(job, settings=settings, model=deepcopy(job.model))
        self._push: Push = lambda bucket, flat: None
        self._passes = Passes(copy, max(1, worker), device, self._take)
        self.model, weights = self._passes.model, self._passes.weights.clone()
        self._optimizer = FlatOptimizer(weights, job.buckets, settings, job.rate, averages=False)

    def run(self, step: int, push: Push) -> None:
        """The passes of a step: batch, loss, gradients."""
        self._push = push
        self._passes.run(step)

    def update(self, step: int) -> None:
        """The optimiser's step, taken on a copy."""
        self._optimizer.gradient.zero_()
        self._optimizer.step(step)

    def close(self) -> None:
        """After the last of them, so that memory is freed."""
        self._passes.close()

    def _take(self, bucket: Bucket, flat: Float[Tensor, " n"]) -> None:
        self._push(bucket, flat)


def in_time(
    timer: SynchronizedTimer, works: Iterable[Work], left: TimeLeft | None
) -> Iterator[Work]:
    """Yields pieces of work, alike on all ranks, while rank 0 has time for another that takes as
    long as the longest so far; one at least.
    """
    longest_s = 0.0
    for number, work in enumerate(works):
        if left is not None and not timer.agree(number == 0 or left.fits(longest_s)):
            return
        began_s = left.elapsed_s if left else 0.0
        yield work
        longest_s = max(longest_s, (left.elapsed_s if left else 0.0) - began_s)


def probe_job(
    job: Job,
    transport: Transport,
    device: torch.device,
    ways: Sequence[Way],
    times: int,
    *,
    comm_types: Collection[str] = (),
    under_way: int = 1,
    left: TimeLeft | None = None,
) -> Probe:
    """Measures passes, codecs and links on all ranks at once, which agree on what they found: but
    for the gradient, which is each rank's own, it is alike on all of them.

    No weight, statistic or random number changes, and nothing is left behind.

    Args:
        job: with a bucket for each parameter.
        transport: connects the ranks, every one of which calls this.
        device: where this rank computes.
        ways: what to measure the costs of.
        times: how often everything is timed.
        comm_types: whose links; none: the job's.
        under_way: of how many messages at once the latency of a link is that of one.
        left: by rank 0's clock, time for the costs: those of the first ways that it suffices for,
            one at least; None: of all.

    Raises:
        ConfigError: a codec does not go with its reduction.
        TransportError: a rank is gone, or does not answer.
    """
    s, master = job.settings, has_master(job.settings.comm_type)
    timer = SynchronizedTimer(Direct(transport, s.timeout))
    dry_run = JobDryRun(job, transport.rank, device)
    with preserved_state(dry_run.model):
        profile = measure_profile(dry_run, timer, times)
        slowing = 1.0 if master else measure_slowing(dry_run, timer, device, times)
        costs = tuple(
            (way, measure_rank_costs(timer, codec, way, profile, times, s.compression,
                                   master=master))
            for codec, way in in_time(timer, ways, left)
        )  # fmt: skip
    dry_run.close()
    names = links_for(comm_types or (s.comm_type,), [one for _, one in costs])
    links = measure_links(
        timer, transport, s.timeout, names, under_way=under_way, most_bytes=4 * job.entries
    )
    transport.drain(s.timeout)
    return Probe(profile, slowing, links, costs)
