"""A writer of checkpoints that is killed at each of its system calls, and a reader after each."""

import os
import signal
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from atomo.training.checkpoints import checkpoint
from atomo.training.checkpoints.checkpoint import Snapshot, load, save, steps, sweep

CALLS = (
    (os, "mkdir"), (os, "fsync"), (os, "open"), (os, "unlink"), (os, "replace"), (os, "close"),
    (os, "listdir"), (Path, "open"),
)  # fmt: skip
WORKERS = 1
FILES = 2 + WORKERS + 1


def snapshot(step: int) -> Snapshot:
    part = {"w": torch.full((3,), float(step))}
    return Snapshot(step, part, part, (part,) * WORKERS, {"step": step})


class Killer:
    """Ends its process before, within or after the call of a number."""

    def __init__(self, at: int) -> None:
        self.calls, self.at = 0, at

    def watched(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            self.calls += 1
            if self.calls == self.at:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **named)

        return call

    def pieces(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a writer that can fail after half of a piece has reached the disk."""

        def write(staging: Any, name: str, pieces: Any, size: int) -> Any:
            def torn() -> Any:
                for piece in pieces:
                    self.calls += 1
                    if self.calls == self.at:
                        path = staging._folder / f".{name}.{os.getpid()}.tmp"
                        path.write_bytes(bytes(piece)[: len(piece) // 2])
                        os.kill(os.getpid(), signal.SIGKILL)
                    yield piece

            return real(staging, name, torn(), size)

        return write


def killed_at(at: int, folder: Path, step: int, keep: int) -> bool:
    """Saves in a child process that is killed at call `at`; True if it was killed, False if it made
    fewer calls.
    """
    child = os.fork()
    if child == 0:
        killer = Killer(at)
        try:
            for owner, name in CALLS:
                setattr(owner, name, killer.watched(getattr(owner, name)))
            staging = checkpoint.Staging
            staging.write_pieces = killer.pieces(staging.write_pieces)  # type: ignore[method-assign]
            save(folder, snapshot(step), keep)
            os._exit(0)
        finally:
            os._exit(9)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0
    return False


def check(folder: Path, newest: int) -> list[int]:
    """Checks that all checkpoints can be read, and that `newest` is among them; returns their
    steps.
    """
    there = steps(folder)
    assert newest in there
    for step in there:
        snapshot = load(folder, step, patience_s=0.0)
        assert snapshot.config["step"] == step
        for part in (snapshot.model, snapshot.optimizer, *snapshot.workers):
            assert (part["w"] == step).all()
    return there


@pytest.mark.long(cases=("1-1",))
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.slow
@pytest.mark.parametrize(("keep", "every"), [(0, 4), (1, 1)])  # to delete is calls more
def test_a_reader_sees_whole_checkpoints_wherever_the_writer_is_killed(tmp_path, keep, every):
    folder, seen = tmp_path / "run", set[tuple[int, ...]]()
    save(folder, snapshot(1))
    save(folder, snapshot(2))
    for at in count(1, every):
        killed = killed_at(at, folder, 3, keep)
        there = steps(folder)
        seen.add((*check(folder, 3 if 3 in there else 2),))
        if not killed:
            break
        sweep(folder)
        assert len(os.listdir(folder)) == FILES * len(there)
        for step in (1, 2):
            save(folder, snapshot(step)) if step not in there else None
        if 3 in there:
            checkpoint.prune(folder, 3, keep=3)
            remove(folder, 3)
    assert at > 30
    assert seen == ({(1, 2), (1, 2, 3)} if not keep else {(1, 2), (1, 2, 3), (2, 3), (3,)})


def remove(folder: Path, step: int) -> None:
    for path in sorted(folder.glob(f"step-{step:08}.*"), key=lambda path: path.suffix != ".json"):
        path.unlink()


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_checkpoint_that_is_written_again_leaves_the_one_before_it(tmp_path):
    for at in count(1):
        folder = tmp_path / str(at)
        save(folder, snapshot(1))
        save(folder, snapshot(2))
        if not killed_at(at, folder, 2, keep=1):
            break
        check(folder, 2 if 2 in steps(folder) else 1)
    assert check(folder, 2) == [2]
