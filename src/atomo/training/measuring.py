"""What `--code auto` goes by: what a job takes, and what codecs lose of its gradients.

The model is not the one that is trained, and what is drawn is drawn from generators of its own: no
weight, statistic or random number of the run is touched.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import torch
from torch import Tensor

from atomo.codecs import Codec
from atomo.comm_types import PARAMETER_SERVER
from atomo.communicators import Direct
from atomo.planning import Costs, Scenario
from atomo.planning.compression_errors import CompressionErrors, measure_compression_errors
from atomo.probing import SynchronizedTimer
from atomo.roles import has_master
from atomo.training.allowance import TimeLeft
from atomo.training.job import Job
from atomo.training.trial import in_time, probe_job
from atomo.transports import Transport

__all__ = ["Measured", "measure"]

REPETITIONS: Final = 2
HALF: Final = 0.5  # of the time, that codecs' costs may take


@final
@dataclass(frozen=True)
class Measured:
    """All ranks', of tensors from the last parameter to the first."""

    scenario: Scenario
    costs: tuple[Costs, ...]  # of each codec
    losses: tuple[CompressionErrors, ...]
    numbers: tuple[float, ...] = ()  # `probing.Probe.numbers`


def measure(
    job: Job,
    transport: Transport,
    device: torch.device,
    codecs: Sequence[Codec[Any]],
    *,
    under_way: int = 1,
    losses: bool = True,
    left: TimeLeft | None = None,
) -> Measured:
    """Measures with all other ranks, which agree on it.

    Args:
        job: with a bucket for each parameter, and any codec.
        transport: connects the ranks.
        device: where this rank computes.
        codecs: all that may be chosen.
        under_way: messages of a step at once.
        losses: whether to measure what they lose.
        left: time for all this, by rank 0's clock; only the first codecs are measured that it
            suffices for, one at least.
    """
    name = job.settings.comm_type
    reduction = "Allgather" if name == PARAMETER_SERVER else name  # a master has what they gather
    ways = [(codec, reduction) for codec in codecs]
    half = left and TimeLeft(HALF * left.seconds)  # the rest is for what follows
    found = probe_job(job, transport, device, ways, REPETITIONS, under_way=under_way, left=half)
    gradient = found.profile.gradient
    costed = codecs[: len(found.costs)]
    lost = agreed_losses(job, transport, costed, gradient, left) if losses else ()
    costs = tuple(one for _, one in found.costs[: len(lost) or None])
    return Measured(found.scenario(job.workers), costs, lost, found.numbers)


def agreed_losses(
    job: Job,
    transport: Transport,
    codecs: Sequence[Codec[Any]],
    gradient: dict[str, Tensor],
    left: TimeLeft | None = None,
) -> tuple[CompressionErrors, ...]:
    """The mean over the workers, each with its own gradient, of the first codecs at least."""
    master = has_master(job.settings.comm_type)
    worker = transport.rank + (not master)
    tensors = len(gradient)
    timer = SynchronizedTimer(Direct(transport, job.settings.timeout))
    mine: list[float] = []
    for codec in in_time(timer, codecs, left):
        mine += (
            measure_compression_errors(codec, gradient, worker).errors
            if worker
            else [0.0] * tensors
        )
    rows = timer.gather(mine, "what codecs lose")
    codecs = codecs[: len(mine) // tensors]
    workers = torch.tensor(rows[len(rows) - job.workers :], dtype=torch.float64)
    errors = workers.mean(0).view(len(codecs), tensors).tolist()
    return tuple(
        CompressionErrors.of(codec, tuple(row)) for codec, row in zip(codecs, errors, strict=True)
    )
