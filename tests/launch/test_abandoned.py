"""A job ends although mpirun does not: it waits without end for a host that has vanished."""

import sys

import pytest
from jobs import alive, until
from support import settings

from atomo.launch import launcher
from atomo.launch.launcher import Job

# In the place of mpirun: it starts something like ssh, in a process group of its own but with the
# same output, says what it is told to, and stays.
MPIRUN = """
import os, subprocess, sys, threading
sleeper = "import threading; threading.Event().wait()"
child = subprocess.Popen([sys.executable, "-c", sleeper], preexec_fn=os.setpgrp)
print("started", child.pid, flush=True)
print(sys.argv[1], flush=True)
threading.Event().wait()
"""
COMPLAINT = "atomo: rank 0 (master), after step 3: rank 0 waited 6 s for worker [2]"


class Notes:
    """A display that keeps what it is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def show(self, event: object) -> None:
        raise AssertionError(event)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def close(self) -> None:
        pass


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> Notes:
    monkeypatch.setattr(launcher, "GRACE_S", 0.2)
    return Notes()


def test_a_job_ends_although_mpirun_does_not(notes, tmp_path):
    line = [sys.executable, "-c", MPIRUN, COMPLAINT]
    assert Job(settings(tmp_path), line, notes).run() == 5
    assert notes.notes[1] == COMPLAINT
    assert "a host may be out of reach" in notes.notes[2]
    assert len(notes.notes) == 3
    child = int(notes.notes[0].split()[1])
    until(lambda: not alive(child), "what mpirun had started to end")
