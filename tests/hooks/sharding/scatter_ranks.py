"""Four ranks that share a model by FSDP2, as a script: `scatter_ranks.py RANK SIZE FOLDER`."""

import re
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from hooks.sharding.odd_network import TEACHER, OddNetwork, sharded_network
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.functional import cross_entropy

import atomo
from atomo.errors import CheckpointError, ConfigError, Diverged

RANK, SIZE, FOLDER = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
WIDTH = 66  # rows that four ranks share unevenly


def mesh_of(ranks: int) -> DeviceMesh:
    """Returns the mesh of this rank's group, when all ranks divide into groups of `ranks`."""
    shape, names = (SIZE // ranks, ranks), ("apart", "shard")
    return init_device_mesh("cpu", shape, mesh_dim_names=names)["shard"]


def sharded(ranks: int) -> OddNetwork:
    return sharded_network(mesh_of(ranks), WIDTH)


def hooked(code: str | None, ranks: int = SIZE, **settings: Any) -> tuple[OddNetwork, Any]:
    model = sharded(ranks)
    return model, atomo.fsdp_hook(model, code, reduce_scatter=True, **settings)


def train(
    model: OddNetwork, steps: range, optimizer: torch.optim.Optimizer | None = None, **options: Any
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
    return torch.cat([tensor.full_tensor().detach().flatten() for tensor in tensors])


def kept(exchange: Any) -> Tensor:
    """Returns the sum of the residuals of the ranks of one group."""
    memory = exchange.state_dict()["memories"][str(exchange.rank)]
    total = torch.cat([memory[name].flatten() for name, _ in OddNetwork(WIDTH).named_parameters()])
    dist.all_reduce(total)
    return total * exchange.size / SIZE


def equals_dense() -> None:
    """Without compression, training equals FSDP2's own: two ranks bit for bit, four within the
    rounding of the order of a sum.
    """
    for ranks in (2, 4):
        plain, (model, exchange) = sharded(ranks), hooked("sgd", ranks)
        losses, expected = train(model, range(3)), train(plain, range(3))
        own, other = whole(model.parameters()), whole(plain.parameters())
        if ranks == 2:
            assert losses == expected
            assert own.equal(other)
        torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-6)
        assert exchange.stats.steps == 3
        assert (exchange.rank, exchange.size) == (RANK % ranks, ranks)
        assert exchange.stats.sent_bytes >= exchange.stats.dense_bytes / 1.01 > 0


def momentum() -> None:
    """Momentum and weight decay in a memory equal those of plain SGD."""
    plain, model = sharded(SIZE), sharded(SIZE)
    heavy = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.05}
    optimizer = torch.optim.SGD(model.parameters(), **heavy)
    atomo.fsdp_hook(model, "sgd", reduce_scatter=True, memory="dgc", optimizer=optimizer)
    assert optimizer.param_groups[0]["weight_decay"] == 0
    train(model, range(4), optimizer)
    train(plain, range(4), torch.optim.SGD(plain.parameters(), **heavy))
    torch.testing.assert_close(
        whole(model.parameters()), whole(plain.parameters()), rtol=1e-4, atol=1e-5
    )


def conserves() -> None:
    """The mean of sent and kept values is the mean of gradients."""
    model, exchange = hooked("topk(ratio=0.05)", memory="residual")
    for step in range(3):
        plain = sharded(SIZE)
        with torch.no_grad():
            for target, source in zip(plain.parameters(), model.parameters(), strict=True):
                target.to_local().copy_(source.to_local())
        before = kept(exchange)
        train(plain, range(step, step + 1))
        train(model, range(step, step + 1))
        gradient, sent = (whole(p.grad for p in m.parameters()) for m in (plain, model))
        after = kept(exchange)
        assert 0 < int(sent.count_nonzero()) < len(sent) / 2
        torch.testing.assert_close(sent + (after - before) / SIZE, gradient, rtol=1e-4, atol=1e-6)


def trains_and_resumes() -> None:
    """Lossy codecs learn; a resumed run equals one never stopped; fewer ranks go on."""
    for code in ("qsgd(bits=4)", "signsgd"):
        model, _ = hooked(code)
        rate = 0.5 if code.startswith("qsgd") else 1e-3
        losses = train(model, range(12), torch.optim.SGD(model.parameters(), lr=rate))
        assert sum(losses[-2:]) < 0.95 * sum(losses[:2]), (code, losses)
    code = "topk(ratio=0.05)"
    model, exchange = hooked(code, memory="residual", dense_steps=1)
    losses = train(model, range(10))
    assert sum(losses[-2:]) < 0.9 * sum(losses[:2]), losses
    assert exchange.stats.ratio > 2, exchange.stats
    place = str(FOLDER / "checkpoint")
    dcp.save({"model": model.state_dict(), "exchange": exchange.state_dict()}, checkpoint_id=place)
    gathered = exchange.gather()
    again, other = hooked(code, memory="residual", dense_steps=1)
    saved = {"model": again.state_dict(), "exchange": other.state_dict()}
    dcp.load(saved, checkpoint_id=place)
    other.load_state_dict(saved["exchange"])
    total = kept(exchange)
    assert float(total.norm()) > 0
    assert train(model, range(10, 13)) == train(again, range(10, 13))
    assert whole(model.parameters()).equal(whole(again.parameters()))
    fewer, smaller = hooked(code, 2, memory="residual", dense_steps=1)
    saved = {"exchange": smaller.state_dict(ranks=SIZE)}
    dcp.load(saved, checkpoint_id=place)
    smaller.load_state_dict(saved["exchange"])
    torch.testing.assert_close(kept(smaller), total)
    train(fewer, range(1))
    assert (gathered is None) == (RANK != 0)
    if gathered is not None:
        assert set(gathered["memories"]) == {str(rank) for rank in range(SIZE)}
        gathered["memories"]["0"]["out.weight"] = torch.zeros(1)
        expect(CheckpointError, "'out.weight' as (1,)", lambda: other.load_state_dict(gathered))


def unused() -> None:
    """Parameters without a gradient need `set_reduce_scatter_unused_params`."""
    model, _ = hooked("topk(ratio=0.05)")
    expect(ConfigError, "unused_params", lambda: train(model, range(1), spare=False))
    model, exchange = hooked("topk(ratio=0.05)", memory="residual")
    model.set_reduce_scatter_unused_params(True)
    train(model, range(2))
    number = str(RANK)
    before = exchange.state_dict()["memories"][number]["spare.weight"]
    train(model, range(2), spare=False)
    assert exchange.state_dict()["memories"][number]["spare.weight"].equal(before)


def all_ranks_fail_together() -> None:
    """A gradient of one rank that is not finite is an error on every rank."""
    model, _ = hooked("qsgd")
    images = torch.full((2, 32), float("nan") if RANK == 1 else 1.0)
    expect(Diverged, "rank 1: the gradient of", lambda: model(images).sum().backward())


def refuses() -> None:
    """Refuses replicas, reductions, codecs with one scale, and other operations."""
    model = sharded(SIZE)
    hook: Any = atomo.fsdp_hook
    mesh = mesh_of(2)
    words = "leave out one of the two"
    expect(ConfigError, words, lambda: hook(model, "qsgd", mesh, reduce_scatter=True))
    expect(ConfigError, "with reduce_scatter=True", lambda: hook(model, "qsgd"))
    words = "goes with codecs, not with PowerSGD"
    expect(ConfigError, words, lambda: hook(model, "powersgd(rank=2)", reduce_scatter=True))
    words = "one scale for all ranks"
    expect(ConfigError, words, lambda: hook(model, "terngrad(scale=shared)", reduce_scatter=True))
    model, _ = hooked("qsgd")
    expect(
        ConfigError, "has an fsdp_hook already", lambda: hook(model, "qsgd", reduce_scatter=True)
    )
    model.set_gradient_divide_factor(3.0)
    expect(ConfigError, "set_gradient_divide_factor", lambda: train(model, range(1)))


def sums() -> None:
    """FSDP2's own order of division, as with half precision, gives the same mean."""
    model, plain = hooked("sgd")[0], sharded(SIZE)
    for network in (model, plain):
        for module in (*network.hidden, network):
            module.set_force_sum_reduction_for_comms(True)
        train(network, range(2))
    torch.testing.assert_close(whole(model.parameters()), whole(plain.parameters()))


def expect(kind: type[Exception], words: str, body: Callable[[], object]) -> None:
    with pytest.raises(kind, match=re.escape(words)):
        body()


torch.set_num_threads(1)
dist.init_process_group(
    "gloo", f"file://{FOLDER / 'store'}", timedelta(seconds=300), rank=RANK, world_size=SIZE
)
SCENARIOS = (
    refuses, sums, equals_dense, momentum, conserves, trains_and_resumes, unused,
    all_ranks_fail_together,
)  # fmt: skip
for scenario in SCENARIOS:
    scenario()
    dist.barrier()
dist.destroy_process_group()
