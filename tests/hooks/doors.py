"""Ranks of which one does something else, as a script: `doors.py RANK SIZE FOLDER NAME ...`."""

import re
import sys
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import atomo
from atomo.errors import AtomoError, ConfigError, DeadlineExpired
from atomo.exchange.collectives import meeting
from atomo.hooks import ddp as hooks

RANK, SIZE, FOLDER = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])


def wrapped(width: int = 3) -> DistributedDataParallel:
    torch.manual_seed(1)
    return DistributedDataParallel(nn.Linear(4, width))


def backward(model: nn.Module) -> None:
    model(torch.ones(2, 4)).sum().backward()


def expect(kind: type[AtomoError], words: str, body: Callable[[], object]) -> str:
    with pytest.raises(kind, match=re.escape(words)) as error:
        body()
    assert len(str(error.value)) < 400, error.value
    return str(error.value)


def seen(name: str) -> None:
    """Rank 0 goes on when all others are here."""
    store = dist.distributed_c10d._get_default_store()
    store.set(f"{name}/{RANK}", "here")
    store.wait([f"{name}/{rank}" for rank in range(SIZE)], timedelta(seconds=500))


def refused() -> None:
    """Invalid arguments raise an error, and no rank waits."""
    ddp, model = wrapped(), nn.Linear(4, 3)
    for settings, words in (
        ({"scaler": 1.0}, "scaler must be the torch.amp.GradScaler that scales the loss, or None"),
        ({"hierarchical": True}, "hierarchical must be 'yes' (hosts by their names), 'no', or how"),
        ({"seed": None}, "seed must be a whole number, got None"),
        ({"memory": atomo.memory.Residual}, "memory must be one of atomo.make_memory, or a name"),
        ({"process_group": "gloo"}, "process_group must be a torch.distributed.ProcessGroup"),
        ({"noise_damping": "yes"}, "noise_damping must be True, False or None, got 'yes'"),
        ({"noise_damping": True}, "noise_damping=True: topk is not unbiased"),
        ({"timeout_s": -1}, "timeout_s must be above 0 and finite, got -1"),
        ({"dense_steps": True}, "dense_steps must be a whole number from 0, got True"),
    ):
        made: Any = settings
        expect(ConfigError, words, lambda made=made: atomo.ddp_hook(ddp, "topk", **made))
    turned: Any = "topk", ddp
    expect(ConfigError, "atomo.ddp_hook(ddp, 'topk')", lambda: atomo.ddp_hook(*turned))
    expect(ConfigError, "wrap the model first", lambda: atomo.ddp_hook(model, "topk"))


def other_state() -> None:
    """A hook with the state of another model, or one of two in the place of the other."""
    first, second = wrapped(3), wrapped(2)
    made = [atomo.ddp_hook(one, "topk") for one in (first, second)]
    first.register_comm_hook(*made[1])
    second.register_comm_hook(made[0][0], made[1][1])
    for one in (first, second):
        expect(ConfigError, "the state or the hook of another model", lambda one=one: backward(one))


def differ() -> None:
    """Ranks with other settings: the same words on all, and the difference alone."""
    ddp = wrapped()
    words = "rank 1 has code topk(ratio=0.1), rank 0 topk: model and settings must be the same"
    code = f"topk(ratio={0.1 if RANK == 1 else 0.01})"
    expect(ConfigError, words, lambda: atomo.ddp_hook(ddp, code))
    caps = DistributedDataParallel(nn.Linear(4, 3), bucket_cap_mb=1 + RANK)
    words = "rank 1 has bucket_cap_mb 2, rank 0 1: model and settings must be the same"
    expect(ConfigError, words, lambda: atomo.ddp_hook(caps, "topk"))


def absent() -> None:
    """A rank that makes no hook is named where one is made, before any process group is."""
    ddp = wrapped()
    if RANK == 0:
        hooks.SOON_S = 0.5
        others = ", ".join(map(str, range(1, SIZE)))
        words = f"rank 0 waited 0.5 s, and rank{'s' * (SIZE > 2)} {others} did not come: every rank"
        expect(DeadlineExpired, words, lambda: atomo.ddp_hook(ddp, "topk"))
        hooks.SOON_S = meeting.SOON_S
        seen("absent")
        return
    seen("absent")
    words = f"rank 0 waited for rank {RANK}, and has given up"
    expect(DeadlineExpired, words, lambda: atomo.ddp_hook(ddp, "topk"))


def unregistered() -> None:
    """A rank that has made a hook, and not registered it: a warning, and then an error."""
    ddp = wrapped()
    state, hook = atomo.ddp_hook(ddp, "topk", timeout_s=5)
    if RANK == 0:
        meeting.SOON_S = 0.5
        ddp.register_comm_hook(state, hook)
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            expect(DeadlineExpired, "did not come: has every rank registered its hook, ",
                   lambda: backward(ddp))  # fmt: skip
        [warning] = [one for one in found if "did not come" in str(one.message)]
        assert str(warning.message).startswith("rank 0 waited 0.5 s, and rank 1 did not come: has")
        meeting.SOON_S = 60.0
    seen("unregistered")


def gathers_alone() -> None:
    """A rank that gathers alone while another trains gets an error; the other rank is
    not affected.
    """
    ddp = wrapped()
    state, hook = atomo.ddp_hook(ddp, "topk", timeout_s=500)
    ddp.register_comm_hook(state, hook)
    backward(ddp)
    if RANK == 0:
        state._averager.collective._timeout_s = 0.5
        expect(DeadlineExpired, "did not come: every rank must call gather()", state.gather)
        state._averager.collective._timeout_s = 500
    backward(ddp)
    if RANK:
        expect(DeadlineExpired, f"rank 0 waited for rank {RANK}, and has given up", state.gather)
    assert (state.gather() is None) == (RANK > 0)


def main() -> None:
    torch.set_num_threads(1)
    store, wait = f"file://{FOLDER / 'store'}", timedelta(seconds=300)
    dist.init_process_group("gloo", store, wait, rank=RANK, world_size=SIZE)
    for name in sys.argv[4:]:
        globals()[name]()
        dist.barrier()
    dist.destroy_process_group()


main()
