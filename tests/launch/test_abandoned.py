"""A job ends although mpirun does not: it waits without end for a host that has vanished."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.harness import settings
from support.jobs import alive, until

from atomo.launch import supervisor
from atomo.launch.exit_messages import FAREWELL
from atomo.launch.jobs.streams import EVENT_MARK
from atomo.launch.supervisor import Supervisor
from atomo.training.job.events import Ended, Failed, Met, to_json

# A stand-in for mpirun: it starts a process like ssh, in a process group of its own but with the
# same output, prints the given text, and stays.
MPIRUN = """
import os, signal, subprocess, sys, threading
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sleeper = "import threading; threading.Event().wait()"
child = subprocess.Popen([sys.executable, "-c", sleeper], preexec_fn=os.setpgrp)
print("started", child.pid, flush=True)
print(sys.argv[1], flush=True)
threading.Event().wait()
"""
FORGIVING = """
import os, signal, sys, threading
signal.signal(signal.SIGTERM, lambda number, frame: os._exit(0))
print(sys.argv[1], flush=True)
threading.Event().wait()
"""
COMPLAINT = "atomo: rank 0 (master), after step 3: rank 0 waited 6 s for worker [2]"


class Notes:
    """A display that records events."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.at: dict[str, Callable[[], Any]] = {}  # the action at each event

    def show(self, event: object) -> None:
        assert isinstance(event, Ended)

    def note(self, text: str) -> None:
        self.notes.append(text)
        self.at.get(text, lambda: None)()

    def close(self) -> None:
        pass


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> Notes:
    monkeypatch.setattr(supervisor, "GRACE_S", 0.2)
    return Notes()


def test_a_complaint_of_a_rank_sets_a_bound(notes, tmp_path):
    run(notes, tmp_path, COMPLAINT, code=5)
    assert notes.notes[1] == COMPLAINT
    assert "a host may be out of reach" in notes.notes[2]
    assert len(notes.notes) == 3


def test_the_code_is_that_of_the_first_rank_that_fails_whatever_mpirun_does(notes, tmp_path):
    """mpirun hangs, or ends with 0, if several ranks abort at once (`FORGIVING`: after
    a signal).
    """
    failed = [EVENT_MARK + to_json(Failed(code)) for code in (3, 5)]
    run(notes, tmp_path, "\n".join([COMPLAINT, *failed]), code=3)
    assert "a host may be out of reach" in notes.notes[2]
    line = [sys.executable, "-c", FORGIVING, failed[0]]
    assert Supervisor(settings(tmp_path), line, notes).run() == 3  # type: ignore[arg-type]
    assert len(notes.notes) == 3


def test_an_interrupt_sets_a_bound(notes, tmp_path):
    notes.at["ready"] = lambda: os.kill(os.getpid(), signal.SIGINT)
    run(notes, tmp_path, "ready", code=130)
    assert notes.notes[1:3] == ["ready", "interrupted: ending now ..."]
    assert "a host may be out of reach" in notes.notes[3]


@pytest.mark.slow
def test_ranks_that_do_not_meet_set_a_bound(notes, tmp_path, monkeypatch):
    """mpirun itself hangs, which has been seen."""
    monkeypatch.setattr(supervisor, "STARTING_S", 0.5)
    run(notes, tmp_path, "not yet", code=5, timeout=0.1)
    assert "0.5 s after the start of the job its ranks have not met" in notes.notes[-1]


def test_once_they_have_met_they_bound_each_other(notes, tmp_path):
    line = [sys.executable, "-c", f"print({EVENT_MARK + to_json(Met())!r}); print('met')"]
    job = Supervisor(settings(tmp_path), line, notes)  # type: ignore[arg-type]
    limits = []
    notes.at["met"] = lambda: limits.append(job._nearest())
    assert job.run() == 5
    assert limits == [None]


@pytest.mark.slow
def test_the_end_of_the_run_sets_a_bound_and_the_run_is_a_success(notes, tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "LEAVING_S", 0.2)
    run(notes, tmp_path, EVENT_MARK + to_json(Ended(9, "done")), code=0, timeout=0.3)
    assert notes.notes[1:] == [
        "atomo: mpirun has not ended within 0.5 s of the end of the run and is killed", FAREWELL
    ]  # fmt: skip


def run(notes: Notes, tmp_path: Path, says: str, *, code: int, **changes: object) -> None:
    """Runs a job that its mpirun does not end, and checks that nothing is left of it."""
    line = [sys.executable, "-c", MPIRUN, says]
    chosen = settings(tmp_path, evaluator="none", **changes)
    assert Supervisor(chosen, line, notes).run() == code  # type: ignore[arg-type]
    child = int(notes.notes[0].split()[1])
    until(lambda: not alive(child), "what mpirun had started to end")
