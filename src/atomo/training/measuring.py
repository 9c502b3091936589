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


def measure(job: Job, transport: Transport, codecs: Sequence[Codec[Any]]) -> Measured:
    """Measures with all other ranks, which agree on it.

    Args:
        job: with a bucket for each parameter, and any codec.
        transport: connects the ranks.
        codecs: all that may be chosen.
    """
    name = job.settings.comm_type
    reduction = "Allgather" if name == PARAMETER_SERVER else name  # a master has what they gather
    ways = [(codec, reduction) for codec in codecs]
    found = probe_job(job, transport, torch.device("cpu"), ways, REPETITIONS)
    losses = agreed_losses(job, transport, codecs, found.profile.gradient)
    return Measured(found.setting(job.workers), tuple(one for _, one in found.costs), losses)


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
