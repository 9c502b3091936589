"""Storage that fails in the middle of a run: steps go on, and nothing that was valid is lost."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support.harness import run_threads, settings
from support.networks import SMALL
from support.selection import slow_but

from atomo.errors import CheckpointError
from atomo.training.checkpoints.checkpoint import load, prune, steps
from atomo.training.folder import run_folder
from atomo.training.folder.ownership import FolderTaken
from atomo.training.job.events import Event, Saved, StepDone, Storage
from atomo.training.records import retrying_writer, run_recorder
from atomo.training.records.retrying_writer import RetryingWriter

TIMES = 4  # steps that an outage takes


class Clock:
    """Seconds that pass in waiting alone."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds


def full() -> None:
    raise CheckpointError("cannot write x: No space left on device")


# --- one thing that is written


def test_attempts_are_further_and_further_apart_and_told_twice():
    events: list[Storage] = []
    clock = Clock()
    outage = RetryingWriter("checkpoints", events.append, clock)
    assert outage.attempt(lambda: None)
    assert not outage.due
    at = []
    for _ in range(200):
        if outage.due or outage.works:
            at.append(clock.now)
            assert not outage.attempt(full)
        clock.now += 1.0
    assert at == [0, 1, 3, 7, 15, 31, 63, 123, 183]
    assert outage.attempt(lambda: None)
    assert [(event.works, event.failures) for event in events] == [(False, 1), (True, 9)]
    assert events[0].text.startswith("cannot write x: No space left on device; training continues")
    assert events[1].text == (
        "checkpoints can be written again, after 9 attempts in 200.0 s that failed"
    )
    assert not outage.attempt(full)
    assert outage.failures == 10
    assert len(events) == 3


def test_what_comes_last_is_tried_for_a_bounded_time():
    clock = Clock()
    outage = RetryingWriter("checkpoints", lambda event: None, clock)
    with pytest.raises(CheckpointError, match="No space left on device; tried for 30 s"):
        outage.insist(full, 30.0, clock.wait)
    assert 30 <= clock.now < 36
    attempts = iter([full, full, lambda: None])
    outage.insist(lambda: next(attempts)(), 30.0, clock.wait)
    assert outage.works


def test_a_folder_that_another_run_has_ends_the_run():
    def taken() -> None:
        raise FolderTaken("another run has it")

    with pytest.raises(FolderTaken):
        RetryingWriter("checkpoints", lambda event: None).attempt(taken)


# --- a run


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries again after each step."""
    monkeypatch.setattr(retrying_writer, "FIRST_S", 0.0)
    monkeypatch.setattr(run_recorder, "PATIENCE_S", 0.0)


def refusing(number: int) -> Callable[[Path], Callable[[], None]]:
    """Nothing in the run's folder can be synced, as the system says it with errno `number`."""

    def begin(folder: Path) -> Callable[[], None]:
        real = os.fsync

        def fsync(descriptor: int) -> None:
            if os.readlink(f"/proc/self/fd/{descriptor}").startswith(str(folder)):
                raise OSError(number, os.strerror(number))
            real(descriptor)

        os.fsync = fsync
        return lambda: setattr(os, "fsync", real)

    return begin


def removed(folder: Path) -> Callable[[], None]:
    """Somebody removes the folder."""
    shutil.rmtree(folder)
    return lambda: None


def moved(folder: Path) -> Callable[[], None]:
    """Moves the folder away; the returned function brings it back unchanged."""
    away = folder.with_name("away")
    folder.rename(away)
    return lambda: None if folder.exists() else (away.rename(folder), None)[1]


def replaced(folder: Path) -> Callable[[], None]:
    """A file takes its place."""
    away = folder.with_name("away")
    folder.rename(away)
    folder.write_bytes(b"")
    return lambda: (folder.unlink(), away.rename(folder), None)[2]


FAULTS = {
    **{errno.errorcode[n]: refusing(n) for n in (errno.ENOSPC, errno.EROFS, errno.ESTALE)},
    "removed": removed,
    "moved": moved,
    "replaced": replaced,
}
CASES = [
    ("ParameterServer", "ENOSPC"),
    ("ParameterServer", "removed"),
    ("ParameterServer", "moved"),
    ("ParameterServer", "replaced"),
]
CASES += [
    ("ParameterServer", "ESTALE"),
    ("ParameterServer", "EROFS"),
    ("Allreduce", "ENOSPC"),
    ("Allreduce", "moved"),
]


@pytest.mark.long(cases=("Allreduce-moved",))
@pytest.mark.slow(cases=("Allreduce",))
@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("case", slow_but([CASES[0], CASES[-1]], CASES), ids="-".join)
def test_a_run_trains_on_and_writes_its_checkpoint_later(tmp_path, case):
    way, fault = case
    common = {"n": 2, "network": SMALL, "code": "sgd", "batch_size": 8, "comm_type": way}
    folder, events = tmp_path / "run", list[Event]()
    mend: list[Callable[[], None]] = []

    def tell(event: Event) -> None:
        events.append(event)
        if isinstance(event, StepDone):
            if event.step == 3:
                mend.append(FAULTS[fault](folder))
            if event.step == 3 + TIMES:
                mend.pop()()

    run_threads(settings(folder, max_steps=12, eval_freq=4, **common), tell)
    changes = [event for event in events if isinstance(event, Storage)]
    last = [event for event in events if isinstance(event, StepDone)][-1]
    saved = [event.step for event in events if isinstance(event, Saved)]
    assert [event.step for event in events if isinstance(event, StepDone)] == [*range(1, 13)]
    if fault == "removed":  # it is made anew at the first checkpoint
        assert (saved, {event.what for event in changes}) == ([4, 8, 12], {"metrics"})
    else:
        assert [(event.what, event.works) for event in changes] == [
            ("checkpoints", False),
            ("checkpoints", True),
        ]
        assert last.storage_failures == changes[-1].failures > 1
        assert saved[-2:] == [8, 12]
        assert 4 not in saved
    assert steps(folder) == saved
    run_threads(settings(tmp_path / "other", max_steps=12, eval_freq=4, **common))
    weights, expected = load(folder, 12).model, load(tmp_path / "other", 12).model
    assert all(weights[name].equal(expected[name]) for name in expected)


@pytest.mark.slow
@pytest.mark.usefixtures("at_once")
def test_a_last_checkpoint_that_cannot_be_written_ends_with_an_error(tmp_path):
    undo: list[Callable[[], None]] = []

    def tell(event: Event) -> None:
        if isinstance(event, StepDone) and event.step == 3:
            undo.append(refusing(errno.EIO)(tmp_path))

    chosen = settings(tmp_path, n=2, network=SMALL, max_steps=4, eval_freq=2)
    try:
        with pytest.raises(CheckpointError, match=r"step-00000004\.json: Input/output error"):
            run_threads(chosen, tell)
    finally:
        undo.pop()()
    assert steps(tmp_path) == [2]
    events: list[Event] = []
    run_threads(chosen, events.append)
    assert [event.step for event in events if isinstance(event, StepDone)] == [3, 4]


@pytest.mark.slow
def test_old_checkpoints_stay_while_the_newest_is_not_seen_to_be_whole(tmp_path):
    chosen = settings(tmp_path, n=2, network=SMALL, max_steps=3, eval_freq=1)
    run_threads(chosen)
    path = tmp_path / "step-00000003.model.safetensors"
    data = path.read_bytes()
    for bad in (data[:-1], data[:-1] + b"\1", None):
        path.write_bytes(bad) if bad is not None else path.unlink()
        with pytest.raises(CheckpointError, match=r"step-00000003\.model"):
            prune(tmp_path, 3, keep=1)
        assert steps(tmp_path) == [1, 2, 3]
    path.write_bytes(data)
    prune(tmp_path, 3, keep=1)
    assert steps(tmp_path) == [3]


def test_a_probe_asks_for_room(tmp_path):
    run_folder.probe(tmp_path / "x", 1)
    with pytest.raises(CheckpointError, match=r"No space left on device .10{18} bytes needed"):
        run_folder.probe(tmp_path / "x", 10**18)
    assert not list(tmp_path.iterdir())
