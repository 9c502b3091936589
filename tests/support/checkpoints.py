"""Snapshots of a small model, and failing calls of the file system, for tests of checkpoints."""

import os
from contextlib import contextmanager
from pathlib import Path

import torch

from atomo.training.checkpoints.checkpoint import Snapshot

__all__ = ["CONFIG", "failing", "listing", "never", "same", "snapshot"]

CONFIG = {"network": "LeNet", "lr": 0.02, "seed": 7, "nesterov": True}


def snapshot(step: int, workers: int = 1, entries: int = 5) -> Snapshot:
    normal = torch.randn(entries, 3, generator=torch.Generator().manual_seed(step))
    return Snapshot(
        step,
        model={"w": normal, "half": normal.bfloat16(), "batches": torch.tensor(step)},
        optimizer={"momentum_buffer/w": -normal},
        workers=tuple({"residual/w": normal * rank} for rank in range(1, workers + 1)),
        config=CONFIG,
    )


def same(a: Snapshot, b: Snapshot) -> bool:
    pairs = zip((a.model, a.optimizer, *a.workers), (b.model, b.optimizer, *b.workers), strict=True)
    return (a.step, a.config) == (b.step, b.config) and all(
        one.keys() == two.keys()
        and all(one[k].dtype == two[k].dtype and one[k].equal(two[k]) for k in one)
        for one, two in pairs
    )


def never(seconds: float) -> None:
    raise AssertionError(f"waits {seconds} s for nothing")


def listing(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


@contextmanager
def failing(monkeypatch, owner, name, number, times=1, match=""):
    """The calls of `owner.name` on a path like `match` fail with errno `number`, `times` times."""
    real, remaining = getattr(owner, name), [times]

    def call(path, *args, **settings):
        if match in str(path) and remaining[0] > 0:
            remaining[0] -= 1
            raise OSError(number, os.strerror(number), str(path))
        return real(path, *args, **settings)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, call)
        yield
