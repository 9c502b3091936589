"""Four ranks with a model sharded by FSDP2, as a script: `fsdp_ranks.py RANK SIZE FOLDER`.

Two replicas of two shards each; at the end one replica of four, and four of one.
"""

import re
import sys
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from hooks.sharding.odd_network import TEACHER, OddNetwork, sharded_network
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo, ShardPlacementResult
from torch.distributed.tensor import DTensor, Shard
from torch.nn.functional import cross_entropy

import atomo
from atomo.errors import AtomoError, CheckpointError, ConfigError
from atomo.hooks.options.hook_config import HookConfig
from atomo.hooks.sharding.fsdp_checks import check_config, sharded_parameters
from atomo.hooks.sharding.fsdp_shards import sharded_modules

RANK, SIZE, FOLDER = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
STEPS = 10


def hooked(replicas: int, code: str, **settings: Any) -> tuple[OddNetwork, Any]:
    """Returns the network sharded in `replicas` replicas, and the hook's state."""
    shape, names = (replicas, SIZE // replicas), ("replicate", "shard")
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    model = sharded_network(mesh["shard"])
    return model, atomo.fsdp_hook(model, code, mesh["replicate"], **settings)


def train(
    model: OddNetwork,
    steps: range = range(STEPS),
    optimizer: torch.optim.Optimizer | None = None,
    **options: Any,
) -> list[float]:
    """Trains on this rank's own images, labelled by a teacher network; returns the losses."""
    optimizer, losses = optimizer or torch.optim.SGD(model.parameters(), lr=0.5), []
    for step in steps:
        generator = torch.Generator().manual_seed(100 * step + RANK)
        images = torch.randn(32, 32, generator=generator)
        optimizer.zero_grad()
        loss = cross_entropy(model(images, **options), (images @ TEACHER).argmax(1))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def whole(tensors: Any) -> Tensor:
    """Returns the sharded tensors, gathered and flattened into one vector."""
    return torch.cat([one.full_tensor().detach().flatten() for one in tensors])


def check_alike(mine: Tensor) -> None:
    """All ranks have the same bits."""
    everyone = [torch.empty_like(mine) for _ in range(SIZE)]
    dist.all_gather(everyone, mine)
    assert all(one.equal(mine) for one in everyone)


def kept(exchange: Any) -> Tensor:
    """Returns the sum of the replicas' residuals. Each residual is whole on as many ranks as the
    replica has shards.
    """
    memory = exchange.state_dict()["memories"][str(exchange.rank)]
    mine = whole(memory[name] for name, _ in OddNetwork().named_parameters())
    dist.all_reduce(mine)
    return mine * exchange.size / SIZE


def equals_hsdp() -> None:
    """The hook without compression equals HSDP, bit for bit."""
    plain = sharded_network(init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))
    model, exchange = hooked(2, "sgd")
    few = range(3)
    assert train(plain, few) == train(model, few)
    assert whole(plain.parameters()).equal(whole(model.parameters()))
    assert exchange.stats.steps == len(few)
    assert exchange.stats.sent_bytes >= exchange.stats.dense_bytes > 0


def heavy(model: nn.Module) -> torch.optim.Optimizer:
    """Returns an SGD whose momentum and weight decay a memory can apply."""
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)


def momentum() -> None:
    """Momentum and weight decay in a memory are plain SGD's where nothing is late."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    plain, model = sharded_network(mesh), sharded_network(mesh["shard"])
    optimizer = heavy(model)
    replicas = mesh["replicate"]
    atomo.fsdp_hook(model, "sgd", replicas, memory="dgc", optimizer=optimizer)
    assert optimizer.param_groups[0]["weight_decay"] == 0
    few = range(4)
    losses, expected = train(model, few, optimizer), train(plain, few, heavy(plain))
    torch.testing.assert_close(losses, expected, rtol=1e-5, atol=1e-6)
    words, other = (
        "applies none of it: give momentum to the optimizer",
        sharded_network(mesh["shard"]),
    )
    expect(ConfigError, words, lambda: atomo.fsdp_hook(other, "qsgd", replicas, momentum=0.9))


def trains_and_resumes(code: str = "topk(ratio=0.05)") -> None:
    """Training compressed learns, alike on all ranks; a resumed run equals one never stopped."""
    model, exchange = hooked(2, code, memory="residual")
    losses = train(model)
    assert sum(losses[-2:]) < 0.9 * sum(losses[:2]), losses
    assert exchange.stats.ratio > 3, exchange.stats
    check_alike(whole(model.parameters()))
    place = str(FOLDER / code)
    dcp.save({"model": model.state_dict(), "exchange": exchange.state_dict()}, checkpoint_id=place)
    again, other = hooked(2, code, memory="residual")
    found = {"model": again.state_dict(), "exchange": other.state_dict()}
    dcp.load(found, checkpoint_id=place)
    other.load_state_dict(found["exchange"])
    rest = range(STEPS, STEPS + 3)
    assert train(model, rest) == train(again, rest)
    assert whole(model.parameters()).equal(whole(again.parameters()))
    assert float(kept(exchange).norm()) > 0
    for replicas in (1, 4):
        elsewhere(replicas, place, code)


def elsewhere(replicas: int, place: str, code: str) -> None:
    """Another number of replicas, and of shards, goes on with the same sum."""
    _, exchange = hooked(2, code, memory="residual")
    dcp.load({"exchange": (state := exchange.state_dict())}, checkpoint_id=place)
    exchange.load_state_dict(state)
    model, other = hooked(replicas, code, memory="residual")
    saved = {"ranks": 0, "shards": 0} if "factors" in state else {"ranks": 0}
    dcp.load({"exchange": saved}, checkpoint_id=place)
    found = {"exchange": other.state_dict(**saved)}
    dcp.load(found, checkpoint_id=place)
    other.load_state_dict(found["exchange"])
    torch.testing.assert_close(kept(other), kept(exchange))
    assert other.state_dict()["step"] == STEPS
    train(model, range(1))


def powersgd() -> None:
    """The mean of PowerSGD is that of its paper, of each shard's rows between replicas."""
    model, exchange = hooked(2, "powersgd(rank=2)", memory="residual")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    state, end = exchange.state_dict(), f", shard {RANK % 2} of 2"
    factors = {n.removeprefix("q/").removesuffix(end): q for n, q in state["factors"].items()}
    # Of the last layer, 3 rows are sent as factors on one shard, and 2 travel dense on the other.
    assert ["out.weight" in factors, "spare.weight" in factors] == [RANK % 2 == 0, False]
    residuals = {name: torch.zeros(()).expand(2, 1, 1) for name in factors}
    for step in range(3):
        gradients = rows_of_replicas(model, step)
        train(model, range(step, step + 1), optimizer)
        memory = exchange.state_dict()["memories"][str(exchange.rank)]
        for name, parameter in model.named_parameters():
            expected = gradients[name].mean(0)
            if name in factors:
                m = gradients[name] + residuals[name]
                p = torch.linalg.qr((m @ factors[name]).sum(0)).Q
                factors[name] = m.mean(0).T @ p
                expected, residuals[name] = p @ factors[name].T, m - p @ (p.T @ m)
                torch.testing.assert_close(
                    memory[name].to_local(), residuals[name][exchange.rank], rtol=1e-4, atol=1e-6
                )
            found: Any = parameter.grad
            torch.testing.assert_close(found.to_local(), expected, rtol=1e-4, atol=1e-6)
    expect(ConfigError, "shards must be a whole", lambda: exchange.state_dict(shards=0))


def rows_of_replicas(model: OddNetwork, step: int) -> dict[str, Tensor]:
    """This shard's rows of each replica's mean gradient, without FSDP2."""
    plain = OddNetwork()
    with torch.no_grad():
        for mine, one in zip(plain.parameters(), model.parameters(), strict=True):
            mine.copy_(one.full_tensor())
    train(plain, range(step, step + 1), torch.optim.SGD(plain.parameters(), lr=0.0))
    found = {}
    for name, parameter in plain.named_parameters():
        mine = parameter.grad
        everyone = [torch.empty_like(mine) for _ in range(SIZE)]
        dist.all_gather(everyone, mine)
        rows = [*((everyone[n] + everyone[n + 1]) / 2 for n in (0, 2))]
        chunks = [one.chunk(2) for one in rows]
        nothing = torch.empty(0, *mine.shape[1:])
        found[name] = torch.stack([(*one, nothing)[RANK % 2] for one in chunks])
    return found


def low_rank_resumes() -> None:
    """Factors are stored by shard, and begin anew on another number of shards."""
    for code in ("powersgd(rank=2)", "acpsgd(rank=2)"):
        trains_and_resumes(code)


def accumulates() -> None:
    """Gradients of several passes without synchronisation are exchanged once."""
    model, exchange = hooked(2, "topk(ratio=0.05)", dense_steps=1, dense_below=100)
    images = torch.randn(8, 32, generator=torch.Generator().manual_seed(RANK))
    for last in (False, False, True):
        model.set_requires_gradient_sync(last)
        model(images).sum().backward()
    assert exchange.stats.steps == 1
    assert float(kept(exchange).norm()) == 0  # the first step was dense


def chunked() -> None:
    """Replicas agree on the chunks of their shards."""
    model, exchange = hooked(2, "chunked(ratio=0.1, chunk=8)")
    train(model, range(2))
    check_alike(whole(model.parameters()))
    assert exchange.stats.ratio > 3, exchange.stats


def unused() -> None:
    """Parameters without a gradient need `set_reduce_scatter_unused_params`; else all ranks raise
    an error.
    """
    model, _ = hooked(2, "topk(ratio=0.05)")
    expect(ConfigError, "set_reduce_scatter_unused_params", lambda: train(model, spare=False))
    model, exchange = hooked(2, "topk(ratio=0.05)")
    model.set_reduce_scatter_unused_params(True)
    train(model, range(2))
    before = exchange.state_dict()["memories"][str(exchange.rank)]["spare.weight"].full_tensor()
    train(model, range(2), spare=False)
    after = exchange.state_dict()["memories"][str(exchange.rank)]["spare.weight"].full_tensor()
    assert before.equal(after)
    assert isinstance(model.scale, DTensor)


def refuses() -> None:
    """Refuses meshes and models that the hook does not support."""
    both = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = sharded_network(both)
    hook: Any = atomo.fsdp_hook
    expect(ConfigError, "mesh of 2 dimensions", lambda: hook(model, "topk", both["replicate"]))
    plain = sharded_network(both["shard"])
    expect(ConfigError, "replicas is a mesh of 2 dim", lambda: hook(plain, "topk", both))
    expect(ConfigError, "has other rows", lambda: hook(plain, "topk", both["shard"]))
    places = [
        ShardPlacementResult(Shard(0), FSDPMeshInfo(both[n], 0)) for n in ("shard", "replicate")
    ]
    layer = nn.Linear(4, 4)
    fully_shard(layer, mesh=both["shard"], shard_placement_fn=lambda one: places[one.ndim - 1])
    expect(ConfigError, "sharded over several meshes", lambda: sharded_modules(layer))
    expect(ConfigError, "not None: a model with one replica", lambda: hook(plain, "topk", None))


def refuses_before_it_makes_groups() -> None:
    """Refuses a code or a model that is wrong by itself, before any group is made."""
    clips = HookConfig("dgc", "dgc(clip=1.0)", 0.9)
    expect(ConfigError, "clips by the norm of the whole", partial(check_config, clips))
    expect(ConfigError, "on is needed, not a Linear", lambda: sharded_parameters(nn.Linear(2, 2)))
    old = FullyShardedDataParallel(nn.Linear(2, 2), device_id="cpu")
    expect(ConfigError, "(FSDP1), which is not supported", lambda: sharded_parameters(old))


def refuses_at_work() -> None:
    """A parameter that the hook has not seen, and a state that is none."""
    model, exchange = hooked(2, "topk")
    words = "format None; this one reads"
    expect(CheckpointError, words, lambda: exchange.load_state_dict({"state": {}}))
    model.out.weight = nn.Parameter(model.out.weight.detach() * 2)
    expect(ConfigError, "has a gradient, and fsdp_hook has not seen it", lambda: train(model))


def expect(kind: type[AtomoError], words: str, body: Callable[[], object]) -> None:
    with pytest.raises(kind, match=re.escape(words)):
        body()


torch.set_num_threads(1)
dist.init_process_group(
    "gloo", f"file://{FOLDER / 'store'}", timedelta(seconds=300), rank=RANK, world_size=SIZE
)
SCENARIOS = (
    equals_hsdp, momentum, trains_and_resumes, powersgd, low_rank_resumes, accumulates, chunked,
    unused, refuses, refuses_before_it_makes_groups, refuses_at_work,
)  # fmt: skip
for scenario in SCENARIOS:
    scenario()
    dist.barrier()
dist.destroy_process_group()
