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
from atomo.planning import Costs, Setting
from atomo.planning.losses import Losses, measure_losses
from atomo.probing import Together
from atomo.roles import has_master
from atomo.training.job import Job
from atomo.training.trial import probe_job
from atomo.transports import Transport

__all__ = ["Measured", "measure"]

REPETITIONS: Final = 2


@final
@dataclass(frozen=True)
class Measured:
    """All ranks', of tensors from the last parameter to the first."""

    setting: Setting
    costs: tuple[Costs, ...]  # of each codec
    losses: tuple[Losses, ...]
    numbers: tuple[float, ...] = ()  # `probing.Probed.numbers`


def measure(
    job: Job,
    transport: Transport,
    device: torch.device,
    codecs: Sequence[Codec[Any]],
    *,
    under_way: int = 1,
    losses: bool = True,
) -> Measured:
    """Measures with all other ranks, which agree on it.

    Args:
        job: with a bucket for each parameter, and any codec.
        transport: connects the ranks.
        device: where this rank computes.
        codecs: all that may be chosen.
        under_way: messages of a step at once.
        losses: whether to measure what they lose.
    """
    name = job.settings.comm_type
    reduction = "Allgather" if name == PARAMETER_SERVER else name  # a master has what they gather
    ways = [(codec, reduction) for codec in codecs]
    found = probe_job(job, transport, device, ways, REPETITIONS, under_way=under_way)
    gradient = found.profile.gradient
    lost = agreed_losses(job, transport, codecs, gradient) if losses else ()
    costs = tuple(one for _, one in found.costs)
    return Measured(found.setting(job.workers), costs, lost, found.numbers)


def agreed_losses(
    job: Job, transport: Transport, codecs: Sequence[Codec[Any]], gradient: dict[str, Tensor]
) -> tuple[Losses, ...]:
    """The mean over the workers, each with its own gradient."""
    master = has_master(job.settings.comm_type)
    worker = transport.rank + (not master)
    tensors = len(gradient)
    mine = [0.0] * (len(codecs) * tensors)
    if worker:
        mine = [e for codec in codecs for e in measure_losses(codec, gradient, worker).errors]
    rows = Together(Direct(transport, job.settings.timeout)).share(mine, "what codecs lose")
    workers = torch.tensor(rows[len(rows) - job.workers :], dtype=torch.float64)
    errors = workers.mean(0).view(len(codecs), tensors).tolist()
    return tuple(Losses.of(codec, tuple(row)) for codec, row in zip(codecs, errors, strict=True))
