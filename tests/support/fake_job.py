"""Small real processes in the place of mpirun and of the evaluator, for the launcher to follow."""

import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from atomo.launch.jobs.streams import EVENT_MARK
from atomo.launch.supervisor import Supervisor
from atomo.training.job.events import Ended, Started, to_json

MUCH_S = 60.0  # a generous limit for work that takes no time
STARTED = Started("LeNet", "Digits", "sgd", "none", 1, 10, 20, 5, 1, 9, "run")

# It prints a master's events: `Started`, notes, `Ended`. A step takes `step_s`. SIGUSR1 ends it
# after the current step; it exits `linger_s` after its last event, or once `until` exists.
MPIRUN = """
import os, signal, sys, time
started, ended, steps, step_s, linger_s, until = sys.argv[1:]
asked = []
signal.signal(signal.SIGUSR1, lambda number, frame: asked.append(number))
print(started, flush=True)
for step in range(int(steps)):
    time.sleep(float(step_s))
    print("step", step, flush=True)
    if asked:
        break
print(ended.replace("REASON", "interrupted" if asked else "done"), flush=True)
time.sleep(float(linger_s))
while until and not os.path.exists(until):
    time.sleep(0.01)
"""
# It never ends, as with a large model on a busy machine.
EVALUATOR = """
import time
print("evaluating for ever", flush=True)
while True:
    time.sleep(100)
"""


def mpirun(
    *, steps: int = 3, step_s: float = 0.0, linger_s: float = 0.0, until: Path | None = None
) -> list[str]:
    """Returns the command of a job of `steps` steps."""
    events = (EVENT_MARK + to_json(event) for event in (STARTED, Ended(steps, "REASON")))
    waits = [str(steps), str(step_s), str(linger_s), str(until or "")]
    return [sys.executable, "-S", "-c", MPIRUN, *events, *waits]


def evaluator() -> list[str]:
    """Returns the command of an evaluator that does not end by itself."""
    return [sys.executable, "-S", "-c", EVALUATOR]


class Notes:
    """A display that records events, and calls a function at each event."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.trained = False  # True after the event that the training has ended
        self.then: Callable[[], object] = lambda: None

    def show(self, event: object) -> None:
        self.trained = self.trained or isinstance(event, Ended)
        self.then()

    def note(self, text: str) -> None:
        self.notes.append(text)
        self.then()

    def close(self) -> None:
        pass


def ended(job: Supervisor) -> int:
    """Runs a job that must not hang; kills a job that hangs. Returns the exit code."""
    guard = threading.Timer(MUCH_S, kill, [job])
    guard.start()
    try:
        return job.run()
    finally:
        guard.cancel()


def kill(job: Supervisor) -> None:
    """Kills the processes of a job. The launcher then reports their end."""
    for process in (job._ranks, job._evaluator):
        with suppress(AttributeError):
            process.kill()  # type: ignore[union-attr]
