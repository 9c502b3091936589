"""Replicas of two shards by FSDP2 that take local steps, as a script: `local_fsdp.py RANK SIZE
FOLDER`.
"""

import copy
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.optim import AdamW

import atomo
from atomo.errors import ConfigError

RANK, SIZE, FOLDER = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
EVERY, STEPS, HALF, SHARDS = 3, 8, 4, 2
TEACHER = torch.randn(16, 5, generator=torch.Generator().manual_seed(5))


def network() -> Any:
    """Returns a network of which one shard has no row of a parameter."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 5), nn.Linear(5, 1), Join())


class Join(nn.Module):
    def forward(self, scores: Tensor) -> Tensor:
        return scores * torch.arange(5)


def batch(step: int, rank: int) -> tuple[Tensor, Tensor]:
    images = torch.randn(8, 16, generator=torch.Generator().manual_seed(100 * step + rank))
    return images, (images @ TEACHER).argmax(1)


def train(model: nn.Module, optimizer: Any, ranks: list[int], steps: range) -> None:
    """Takes steps with the batches of some ranks."""
    for step in steps:
        batches = [batch(step, rank) for rank in ranks]
        images, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        optimizer.step()


def whole(model: nn.Module) -> Tensor:
    tensors: list[Any] = [*model.parameters()]
    return torch.cat([tensor.full_tensor().detach().flatten() for tensor in tensors])


def flat(model: nn.Module) -> Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in model.parameters()])


def sharded(mesh: Any, code: str) -> tuple[Any, Any]:
    model = network()
    fully_shard(model, mesh=mesh["shard"])
    with pytest.raises(ConfigError, match=r"sharded by FSDP2: give replicas=mesh\['replicate'\]"):
        atomo.local_steps(model, AdamW(model.parameters(), lr=0.01), code, every=EVERY)
    optimizer = AdamW(model.parameters(), lr=0.01)
    wrapped = atomo.local_steps(model, optimizer, code, every=EVERY, replicas=mesh["replicate"])
    return model, wrapped


def equals_plain_replicas(mesh: Any) -> None:
    """Sharded replicas take the local steps of whole replicas with the batches of both shards."""
    model, wrapped = sharded(mesh, "sgd")
    train(model, wrapped, [RANK], range(STEPS))
    plain = network()
    group = mesh["replicate"].get_group()
    optimizer = atomo.local_steps(
        plain, AdamW(plain.parameters(), lr=0.01), "sgd", every=EVERY, process_group=group
    )
    first = RANK // SHARDS * SHARDS
    train(plain, optimizer, [*range(first, first + SHARDS)], range(STEPS))
    torch.testing.assert_close(whole(model), flat(plain), rtol=1e-4, atol=1e-5)
    with wrapped.anchor(), optimizer.anchor():
        anchor = whole(model)
        torch.testing.assert_close(anchor, flat(plain), rtol=1e-4, atol=1e-5)
    everyone = [torch.empty_like(anchor) for _ in range(SIZE)]
    dist.all_gather(everyone, anchor)
    assert all(other.equal(anchor) for other in everyone)
    assert not whole(model).equal(anchor)
    with pytest.raises(ConfigError, match="gather\\(\\) is for whole models"):
        wrapped.gather()


def continues(mesh: Any) -> None:
    """A file of each rank continues in the middle of a round, bit for bit."""
    model, wrapped = sharded(mesh, "topk(ratio=0.2)")
    train(model, wrapped, [RANK], range(HALF))
    state = copy.deepcopy({"model": model.state_dict(), "optimizer": wrapped.state_dict()})
    torch.save(state, FOLDER / f"rank-{RANK}.pt")
    train(model, wrapped, [RANK], range(HALF, STEPS))
    again, resumed = sharded(mesh, "topk(ratio=0.2)")
    loaded = torch.load(FOLDER / f"rank-{RANK}.pt", weights_only=False)
    again.load_state_dict(loaded["model"])
    resumed.load_state_dict(loaded["optimizer"])
    train(again, resumed, [RANK], range(HALF, STEPS))
    assert whole(again).equal(whole(model))


torch.set_num_threads(1)
dist.init_process_group(
    "gloo", f"file://{FOLDER / 'store'}", timedelta(seconds=300), rank=RANK, world_size=SIZE
)
names = ("replicate", "shard")
both = init_device_mesh("cpu", (SIZE // SHARDS, SHARDS), mesh_dim_names=names)
for scenario in (equals_plain_replicas, continues):
    scenario(both)
    dist.barrier()
dist.destroy_process_group()
