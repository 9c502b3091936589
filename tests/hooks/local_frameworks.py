"""Replicas that take local steps in the training loops of frameworks, as a script:
`local_frameworks.py RANK SIZE FOLDER NAME ...`.
"""

import logging
import os
import sys
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

import atomo
from atomo.errors import ConfigError

RANK, SIZE, FOLDER = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
CODE, EVERY, STEPS, HALF, BATCH = "topk(ratio=0.1)", 3, 11, 5, 8


def network() -> nn.Module:
    """Returns a network with buffers, the same on all ranks."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Tanh(), nn.Linear(32, 5))


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Returns this rank's batch of a step."""
    generator = torch.Generator().manual_seed(100 * step + RANK)
    images = torch.randn(BATCH, 16, generator=generator)
    return images, (images[:, :5] * 2 + images[:, 5:10]).argmax(1)


def inner(model: nn.Module) -> AdamW:
    return AdamW(model.parameters(), lr=0.01)


def train(model: nn.Module, optimizer: Any, steps: range = range(STEPS)) -> None:
    for step in steps:
        images, labels = batch(step)
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        optimizer.step()


def flat(model: nn.Module) -> Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in model.state_dict().values()])


def same_on_all(mine: Tensor) -> bool:
    """True if all ranks have the same bits."""
    everyone = [torch.empty_like(mine) for _ in range(SIZE)]
    dist.all_gather(everyone, mine)
    return all(other.equal(mine) for other in everyone)


def ddp() -> None:
    """A script with DDP needs one line: its steps are those of the plain model, bit for bit."""
    store = dist.distributed_c10d._get_default_store()
    plain = network()
    optimizer = atomo.local_steps(plain, inner(plain), CODE, every=EVERY)
    train(plain, optimizer)
    model = DistributedDataParallel(network(), find_unused_parameters=True)
    wrapped = atomo.local_steps(model, inner(model), CODE, every=EVERY)
    if RANK == 0:  # takes the steps of a round while no other rank takes any
        train(model, wrapped, range(EVERY - 1))
        store.set("local/alone", "done")
    else:
        store.wait(["local/alone"], timedelta(seconds=500))
        train(model, wrapped, range(EVERY - 1))
    train(model, wrapped, range(EVERY - 1, STEPS))
    assert flat(model.module).equal(flat(plain))
    assert not same_on_all(flat(plain))
    with wrapped.anchor():
        assert same_on_all(flat(model.module))
    assert wrapped.exchange.stats.steps == STEPS // EVERY
    with pytest.raises(ConfigError, match="already"):
        atomo.ddp_hook(model, CODE)
    hooked = DistributedDataParallel(network())
    hooked.register_comm_hook(*atomo.ddp_hook(hooked, CODE))
    with pytest.raises(ConfigError, match="already"):
        atomo.local_steps(hooked, inner(hooked), CODE)


def main() -> None:
    warnings.simplefilter("default")  # other packages emit many warnings
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(RANK), "LOCAL_RANK": str(RANK), "WORLD_SIZE": str(SIZE)}
    os.environ |= {"LOCAL_WORLD_SIZE": str(SIZE), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    store, wait = f"file://{FOLDER / 'store'}", timedelta(seconds=300)
    dist.init_process_group("gloo", store, wait, rank=RANK, world_size=SIZE)
    for name in sys.argv[4:]:
        globals()[name]()
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
