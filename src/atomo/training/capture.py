"""A real gradient to look at, from a short run in this process."""

from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from atomo.data import epoch_seed, load_dataset
from atomo.models import build_model
from atomo.randomness import derive
from atomo.training.shard import Shard

__all__ = ["capture"]


def capture(
    network: str, dataset: str, data_dir: Path, *, steps: int, batch_size: int = 32, seed: int = 1
) -> dict[str, Tensor]:
    """The gradient after `steps` steps of plain SGD, by parameter name, in forward order.

    Raises:
        ConfigError: a name is unknown.
        DataError: the data set is missing.
    """
    data = load_dataset(dataset, data_dir)
    torch.manual_seed(derive(seed, "weights"))
    model = build_model(network, data.input_shape, data.classes)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    shard = Shard(len(data.train), 1, 0, batch_size, seed)
    for step in range(1, steps + 2):
        if step > 1:
            optimizer.step()
        images, labels = data.train.batch(shard.indices(step), epoch_seed(seed, shard.epoch(step)))
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
