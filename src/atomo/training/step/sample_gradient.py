"""A real gradient to inspect, from a short run in this process."""

from pathlib import Path

import torch
from torch import Tensor

from atomo.core.randomness import derive
from atomo.training.job.shard import Shard
from atomo.workloads import task_of
from atomo.workloads.datasets import epoch_seed

__all__ = ["sample_gradient"]


def sample_gradient(
    network: str, dataset: str, data_dir: Path, *, steps: int, batch_size: int = 32, seed: int = 1
) -> dict[str, Tensor]:
    """Returns the gradient after `steps` steps of plain SGD, by parameter name, in forward order.

    Raises:
        ConfigError: a name is unknown.
        DataError: the data set is missing.
    """
    work = task_of(dataset).open(dataset, data_dir)
    torch.manual_seed(derive(seed, "weights"))
    model = work.build(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    shard = Shard(len(work.train), 1, 0, batch_size, seed)
    for step in range(1, steps + 2):
        if step > 1:
            optimizer.step()
        batch = work.train.batch(shard.indices(step), epoch_seed(seed, shard.epoch(step)))
        optimizer.zero_grad()
        loss = work.objective.loss(model(*batch.inputs), batch.targets)
        loss.backward()  # type: ignore[no-untyped-call]
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
