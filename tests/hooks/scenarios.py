"""Ranks of one job with a hook, as a script: `scenarios.py RANK SIZE FOLDER NAME ...`."""

import copy
import re
import sys
import warnings
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from hooks.scenario_training import (
    FOLDER,
    RANK,
    SIZE,
    SMALL,
    STEPS,
    batches,
    check_alike,
    expect,
    flat,
    network,
    sgd,
    step,
    total,
    train,
    wrapped,
)
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import atomo
from atomo.errors import CheckpointError, ConfigError, DeadlineExpired, Diverged
from atomo.exchange.collectives.collective import Addend
from atomo.exchange.collectives.torch_distributed import TorchCollective


def gathers() -> None:
    """Bytes of any length, also longer and shorter than those that came before."""
    ranks = TorchCollective()
    for turn, length in enumerate((3, 3, 500, 1, 4, 0, 90_000, 2)):
        for label in (f"a bucket of step {turn}", "the memory of a layer"):
            frames = [np.full(1 + length * rank, turn + rank, np.uint8) for rank in range(SIZE)]
            gathered = [*ranks.gather(frames[RANK], label)]
            assert [frame.tolist() for frame in gathered] == [frame.tolist() for frame in frames]
    for codec in ("sgd", "bf16"):
        for size in (2, 150_000):  # fewer than ranks, and several chunks
            values = torch.arange(size) % 5.0 + RANK
            ranks.sum([Addend(values, atomo.make_codec(codec))], "a sum")
            assert values.equal(SIZE * (torch.arange(size) % 5.0) + sum(range(SIZE)))


def equals_ddp() -> None:
    """The hook without compression equals DDP, bit for bit."""
    for settings in ({"momentum": 0.9}, {"micro": 2}, {"clip": 0.05}, {"options": {}}):
        plain, losses, _ = train(None, **settings)
        hooked, same, state = train("sgd", **settings)
        assert plain.equal(hooked), settings
        assert losses == same
        assert state.stats.sent_bytes == state.stats.dense_bytes > 0


def trains() -> None:
    for code in ("topk(ratio=0.05)", "svd(rank=3)", "qsgd(bits=4)", "terngrad(scale=shared)"):
        _, losses, state = train(code)
        assert sum(losses[-5:]) < 0.93 * sum(losses[:5]), (code, losses)
        assert state.stats.ratio > 1.5, (code, state.stats)
        assert state.stats.steps == STEPS


def layouts() -> None:
    """Results do not depend on how DDP lays out its buckets: seeds go by parameter name."""
    whole, _, _ = train("svd(rank=2)", {})
    for options in (
        SMALL,
        {**SMALL, "gradient_as_bucket_view": True},
        {**SMALL, "static_graph": True},
        {**SMALL, "find_unused_parameters": True},
        {"bucket_cap_mb_list": [0.01, 0.001, 1.0]},
    ):
        again, _, _ = train("svd(rank=2)", options)
        assert whole.equal(again), options


def channels_last() -> None:
    """A gradient is seen in its parameter's shape, however it lies."""
    torch.manual_seed(2)
    # With four channels, a row of the matrix that a codec makes of it is no row of the other one.
    layers = nn.Conv2d(4, 8, (2, 3)), nn.Linear(16, 5)
    base = nn.Sequential(nn.Unflatten(1, (4, 2, 4)), layers[0], nn.Flatten(), layers[1])
    plain, _, _ = train("svd(rank=2, selection=top)", model=copy.deepcopy(base))
    lying = base.to(memory_format=torch.channels_last)
    last, _, _ = train("svd(rank=2, selection=top)", model=lying)
    torch.testing.assert_close(plain, last, rtol=1e-3, atol=1e-4)


class Branches(nn.Module):
    """Uses one of its branches, or none."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(32, 32)
        self.branches = nn.ModuleList(nn.Linear(32, 5) for _ in range(2))

    def forward(self, images: Tensor, used: list[int]) -> Tensor:
        hidden = self.first(images).tanh()
        return sum((self.branches[one](hidden) for one in used), hidden[:, :5])


def unused(code: str = "topk(ratio=0.1)") -> None:
    """A branch that this rank did not use leaves its memory alone."""
    torch.manual_seed(3)
    ddp, state = wrapped(Branches(), code, {**SMALL, "find_unused_parameters": True})
    optimizer, seen = sgd(ddp), []
    for (images, labels), used in zip(batches(4), ([0, 1], [RANK % 2], [0], [0]), strict=True):
        optimizer.zero_grad(set_to_none=True)
        before = dict(state.state_dict()["memories"][str(RANK)])
        cross_entropy(ddp(images, used), labels).backward()
        after = state.state_dict()["memories"][str(RANK)]
        same = [before[f"branches.{b}.weight"].equal(after[f"branches.{b}.weight"]) for b in (0, 1)]
        assert same == [0 not in used, 1 not in used]
        seen.append(ddp.module.branches[1].weight.grad is None)
        optimizer.step()
    assert seen == [False, False, True, True]  # DDP has discarded the restored copy
    assert float(before["branches.1.weight"].norm()) > 0
    check_alike(ddp)


def joins() -> None:
    """A rank that has no more batches leaves its memory alone, and goes on with the others."""
    ddp, state = wrapped(network(), "topk(ratio=0.1)", SMALL)
    optimizer, count = sgd(ddp), 3 + RANK
    with ddp.join():
        for images, labels in batches(count):
            optimizer.zero_grad()
            cross_entropy(ddp(images), labels).backward()
            optimizer.step()
            kept = state.state_dict()["memories"][str(RANK)]
    after = state.state_dict()["memories"][str(RANK)]
    assert all(kept[name].equal(after[name]) for name in kept)
    check_alike(ddp)
    assert state.stats.steps == 3 + SIZE - 1


def amp_run(
    scale: float | None, spoilt: int = -1, code: str = "topk(ratio=0.1)"
) -> tuple[Tensor, Any, list[float]]:
    scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, enabled=scale is not None)
    settings = {} if scale is None else {"scaler": scaler}
    ddp, state = wrapped(network(), code, SMALL, **settings)
    optimizer, scales = sgd(ddp), []
    for number, (images, labels) in enumerate(batches(6)):
        optimizer.zero_grad()
        before, weights = total(state), flat(ddp)
        loss = cross_entropy(ddp(images), labels)
        if number == spoilt and RANK == SIZE - 1:
            loss = loss * torch.inf
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if number == spoilt:
            assert total(state).equal(before)
            assert flat(ddp).equal(weights)
        scales.append(scaler.get_scale())
    check_alike(ddp)
    return flat(ddp), state, scales


def amp() -> None:
    """Memories hold unscaled values, and a step that one rank spoils is skipped by all."""
    plain, unscaled, _ = amp_run(None)
    weights, state, _ = amp_run(1024.0)
    assert plain.equal(weights)
    assert total(unscaled).equal(total(state))
    _, state, scales = amp_run(1024.0, spoilt=3)
    assert scales == [1024.0] * 3 + [512.0] * 3
    assert (state.stats.skipped, state.stats.steps) == (1, 6)


def heavy(model: nn.Module) -> torch.optim.Optimizer:
    """Returns an SGD whose momentum and weight decay a memory can apply."""
    settings = {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}
    return torch.optim.SGD(model.parameters(), lr=0.05, **settings)


def heavy_run(
    code: str | None, scale: float = 0.0, micro: int = 1, view: bool = False, **settings: Any
) -> Tensor:
    """Returns the weights after steps of `heavy`, whose momentum moves where there is a code."""
    options = {**SMALL, "gradient_as_bucket_view": view}
    ddp = DistributedDataParallel(network(), **options)
    optimizer = heavy(ddp)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, enabled=bool(scale))
    if code:
        hook = atomo.ddp_hook(ddp, code, optimizer=optimizer, scaler=scaler, **settings)
        ddp.register_comm_hook(*hook)
        assert optimizer.param_groups[0]["momentum"] == 0
    for number, (images, labels) in enumerate(batches(8)):
        last = (number + 1) % micro == 0
        with nullcontext() if last else ddp.no_sync():
            spoilt = torch.inf if scale and number == 3 and RANK == 0 else 1.0
            scaler.scale(cross_entropy(ddp(images), labels) * spoilt).backward()
        if last:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    check_alike(ddp)
    return flat(ddp)


def momentum() -> None:
    """Momentum and weight decay in a memory are plain SGD's where nothing is late; and those of
    `wrap_optimizer` elsewhere.
    """
    for settings in ({}, {"micro": 2, "view": True}, {"scale": 1024.0}):
        moved = heavy_run("sgd", memory="dgc", **settings)
        torch.testing.assert_close(moved, heavy_run(None, **settings), rtol=1e-5, atol=1e-6)
    code = "svd(rank=2, selection=top)"  # sees a matrix at a time, whatever the buckets
    model = network()
    optimizer = atomo.wrap_optimizer(heavy(model), model, code)
    for images, labels in batches(8):
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        optimizer.step()
    assert optimizer.exchange.state_dict()["memory"] == "dgc"
    assert heavy_run(code).equal(flat(model))
    if SIZE == 4:
        moved = heavy_run("sgd", memory="dgc", hierarchical=2)
        torch.testing.assert_close(moved, heavy_run(None), rtol=1e-5, atol=1e-6)
    one_hook()


def one_hook() -> None:
    """A model has one hook; a rank warns of momentum that works against a memory, once."""
    ddp, state = wrapped(network(), "topk(ratio=0.05)", SMALL)
    assert re.fullmatch(r"Exchange\(topk\(ratio=0.05\), memory residual, .*\)", repr(state))
    expect(ConfigError, "has a communication hook already", lambda: atomo.ddp_hook(ddp, "topk"))
    optimizer = sgd(ddp, 0.9)
    for number, (images, labels) in enumerate(batches(2)):
        step(ddp, images, labels)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            optimizer.step()
        said = [str(one.message) for one in seen]
        assert len(said) == (RANK == 0 and number == 0), said
        assert all("give optimizer=... to the hook" in one for one in said)


def methods() -> None:
    """PowerSGD and ACP-SGD: unused parameters, skipped steps, torch's distributed checkpoint."""
    for code in ("powersgd(rank=2)", "acpsgd(rank=2)"):
        plain, _, _ = amp_run(None, code=code)
        weights, _, _ = amp_run(1024.0, code=code)
        assert plain.equal(weights)
        _, state, _ = amp_run(1024.0, 3, code)
        assert (state.stats.skipped, state.stats.steps) == (1, 6)
        unused(code)
        place = str(FOLDER / code)
        dcp.save({"exchange": state.state_dict()}, checkpoint_id=place)
        ddp, _ = wrapped(network(), None, {})
        fresh, _ = atomo.ddp_hook(ddp, code)
        found = {"exchange": fresh.state_dict()}
        dcp.load(found, checkpoint_id=place)
        fresh.load_state_dict(found["exchange"])
        mine, theirs = state.state_dict()["factors"], fresh.state_dict()["factors"]
        assert mine
        assert all(one.equal(theirs[name]) for name, one in mine.items())
        assert total(fresh).equal(total(state))


def not_finite() -> None:
    """A gradient that is not finite on one rank, without a scaler, is an error on all."""
    ddp, _ = wrapped(network(), "topk(ratio=0.1)", SMALL)
    images, labels = batches(1)[0]
    if RANK == SIZE - 1:
        images = images * torch.nan
    expect(Diverged, f"rank {SIZE - 1}: the gradient of ", lambda: step(ddp, images, labels))


def too_late() -> None:
    """A rank that does not come is an error at the others, in time."""
    ddp, _ = wrapped(network(), "topk(ratio=0.1)", SMALL, timeout_s=2)
    images, labels = batches(1)[0]
    store = dist.distributed_c10d._get_default_store()
    if RANK == 0:
        words = "waited 2 s, and rank 1 did not come: has every rank registered its hook"
        expect(DeadlineExpired, words, lambda: step(ddp, images, labels))
        store.set("seen", "yes")
    else:
        store.wait(["seen"], timedelta(seconds=500))


def resumes() -> None:
    """torch's distributed checkpoint, one file, and another number of ranks keep the sum."""
    _, _, state = train("topk(ratio=0.05)")
    ddp, _ = wrapped(network(), None, {})
    place = str(FOLDER / "checkpoint")
    dcp.save({"exchange": state.state_dict()}, checkpoint_id=place)
    fresh, _ = atomo.ddp_hook(ddp, "topk(ratio=0.05)")
    found = {"exchange": fresh.state_dict()}
    dcp.load(found, checkpoint_id=place)
    fresh.load_state_dict(found["exchange"])
    assert fresh.state_dict()["step"] == STEPS
    assert total(fresh).equal(total(state))

    gathered = state.gather()
    assert (gathered is None) == (RANK > 0)
    if RANK == 0:
        torch.save(gathered, FOLDER / "one-file.pt")
    dist.barrier()
    loaded = torch.load(FOLDER / "one-file.pt", weights_only=True)
    again, _ = atomo.ddp_hook(ddp, "topk(ratio=0.05)")
    again.load_state_dict(loaded)
    mine, theirs = state.state_dict(), again.state_dict()
    kept = mine["memories"][str(RANK)]
    assert all(kept[name].equal(theirs["memories"][str(RANK)][name]) for name in kept)

    alone = [dist.new_group([rank]) for rank in range(SIZE)][RANK]
    one, _ = atomo.ddp_hook(ddp, "topk(ratio=0.05)", process_group=alone)
    if RANK == 0:
        ranks = {"exchange": {"ranks": 0}}
        dcp.load(ranks, checkpoint_id=place, process_group=alone)
        assert ranks == {"exchange": {"ranks": SIZE}}
        found = {"exchange": one.state_dict(ranks=SIZE)}
        dcp.load(found, checkpoint_id=place, process_group=alone)
        one.load_state_dict(found["exchange"])
        added = one.state_dict()["memories"]["0"]
    whole = total(state)
    if RANK == 0:
        torch.testing.assert_close(torch.cat([added[n].flatten() for n in sorted(added)]), whole)
        expect(CheckpointError, "gather() at rank 0", lambda: one.load_state_dict(mine))


def hierarchical() -> None:
    """Hosts of two ranks: DDP's mean but for the order of sums, and one memory a host."""
    plain, _, _ = train(None)
    hooked, _, state = train("sgd", hierarchical=2)
    torch.testing.assert_close(hooked, plain)
    leads = RANK % 2 == 0
    assert (state.stats.sent_bytes, state.rank, state.size) == (
        leads * state.stats.dense_bytes, RANK, SIZE,
    )  # fmt: skip
    _, losses, state = train("topk(ratio=0.05)", hierarchical=2)
    assert sum(losses[-5:]) < 0.93 * sum(losses[:5]), losses
    ddp, _ = wrapped(network(), None, {})
    place = str(FOLDER / "checkpoint")
    dcp.save({"exchange": state.state_dict()}, checkpoint_id=place)
    fresh, _ = atomo.ddp_hook(ddp, "topk(ratio=0.05)", hierarchical=2)
    found = {"exchange": fresh.state_dict()}
    dcp.load(found, checkpoint_id=place)
    fresh.load_state_dict(found["exchange"])
    mine, theirs = fresh.state_dict(), state.state_dict()
    assert (mine["step"], mine["ranks"], "memories" in mine) == (STEPS, SIZE // 2, leads)
    for name, kept in theirs["memories"][str(RANK // 2)].items() if leads else ():
        assert mine["memories"][str(RANK // 2)][name].equal(kept)
    expect(ConfigError, f"all {SIZE} ranks are on",
           lambda: atomo.ddp_hook(ddp, "topk", hierarchical="yes"))  # fmt: skip


def main() -> None:
    torch.set_num_threads(1)
    store = f"file://{FOLDER / 'store'}"
    wait = timedelta(seconds=300)
    dist.init_process_group("gloo", store, wait, rank=RANK, world_size=SIZE)
    for name in sys.argv[4:]:
        globals()[name]()
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
