"""What `--code auto` goes by: passes, costs and losses, as each worker measures them by itself.

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
from atomo.data import epoch_seed
from atomo.planning import Costs, Profile, measure_costs, measure_passes
from atomo.planning.costs import Cost
from atomo.planning.losses import Losses, measure_losses
from atomo.training.job import Job
from atomo.training.precision import forward_in

__all__ = ["Measured", "mean_of", "measure"]

REPETITIONS: Final = 2


@final
@dataclass(frozen=True)
class Measured:
    """One worker's, or the mean of several, of tensors from the last parameter to the first."""

    profile: Profile
    costs: tuple[Costs, ...]  # of each codec
    losses: tuple[Losses, ...]

    def state(self) -> dict[str, Tensor]:
        """All numbers of it."""
        one = self.profile
        rows = [[as_list(cost) for cost in (costs.message, *costs.each)] for costs in self.costs]
        numbers = {
            "passes": [one.forward_s, one.backward_s, *one.ready_s],
            "costs": rows,
            "errors": [losses.errors for losses in self.losses],
            "rounds": [[float(costs.rounds), float(costs.holds)] for costs in self.costs],
        }
        return {name: torch.tensor(rows, dtype=torch.float64) for name, rows in numbers.items()}


def as_list(cost: Cost) -> list[float]:
    """Three numbers."""
    return [cost.encode_s, cost.decode_s, cost.sent_bytes]


def measure(job: Job, worker: int, codecs: Sequence[Codec[Any]]) -> Measured:
    """Measures on the first batch of a worker.

    Args:
        job: with any codec; its model is used up.
        worker: 1..workers.
        codecs: all that may be chosen.
    """
    settings, workload = job.settings, job.workload
    indices = job.shard(worker).indices(1)[: settings.batch_size]
    batch = workload.train.batch(indices, epoch_seed(settings.seed, 0))
    with forward_in(settings.precision, torch.device("cpu")):
        profile = measure_passes(job.model.train(), workload.objective, batch, REPETITIONS)
    # A master has what workers gather.
    name = "Allgather" if settings.comm_type == PARAMETER_SERVER else settings.comm_type
    gradient, compression = profile.gradient, settings.compression
    costs = [measure_costs(one, name, gradient, REPETITIONS, compression) for one in codecs]
    losses = [measure_losses(one, gradient, worker) for one in codecs]
    return Measured(profile, tuple(costs), tuple(losses))


def mean_of(
    states: Sequence[dict[str, Tensor]], job: Job, codecs: Sequence[Codec[Any]]
) -> Measured:
    """The mean of what `Measured.state` says of several workers."""
    mean = {name: torch.stack([one[name] for one in states]).mean(0) for name in states[0]}
    forward_s, backward_s, *ready = mean["passes"].tolist()
    shapes = {name: p.detach() for name, p in job.model.named_parameters() if p.requires_grad}
    profile = Profile(forward_s, tuple(ready), backward_s, shapes)
    costs, losses = [], []
    for at, codec in enumerate(codecs):
        message, *each = (Cost(*row) for row in mean["costs"][at].tolist())
        rounds, holds = mean["rounds"][at].tolist()
        costs.append(Costs(str(codec), tuple(each), message, round(rounds), holds > 0))
        losses.append(Losses.of(codec, tuple(mean["errors"][at].tolist())))
    return Measured(profile, tuple(costs), tuple(losses))
