"""Starts a job, shows it, and ends with its exit code."""

import json
import queue
import signal
import sys
import time
from collections.abc import Sequence
from types import FrameType
from typing import final

from rich.console import Console

from atomo.arguments import to_arguments
from atomo.config import Settings
from atomo.errors import INTERRUPTED, TransportError
from atomo.launch.display import Display, Live, Plain
from atomo.launch.mpirun import command
from atomo.launch.place import located
from atomo.launch.streams import EVENT_MARK, GRACE_S, Line, Process
from atomo.launch.summary import Summary
from atomo.program import handled
from atomo.training.events import Event, Started, from_json
from atomo.training.scoring import Evaluation

__all__ = ["launch"]


def launch(settings: Settings, console: Console) -> int:
    """Runs the job of `settings` to its end and returns the exit code.

    Raises:
        ConfigError: a setting does not hold; nothing was started.
    """
    settings = located(settings)
    line = command(settings, to_arguments(settings))
    display: Display = (
        Live(console) if console.is_terminal else Plain(sys.stdout, settings.log_interval)
    )
    job = Job(settings, line, display)
    try:
        code = job.run()
    finally:
        display.close()
    if job.summary.last or not code:
        console.print(job.summary.table())
    return code


ABANDONED = (
    f"atomo: mpirun has not ended the job within {GRACE_S:g} s and is killed: a host may be out of "
    "reach, and its ranks may go on for a while"
)
SIGNALLED = 128  # exit codes above it are this plus a signal


@final
class Job:
    """The processes of one run, and what becomes of them."""

    def __init__(self, settings: Settings, line: Sequence[str], display: Display) -> None:
        self.summary = Summary()
        self._settings, self._line, self._display = settings, line, display
        self._lines: queue.SimpleQueue[Line] = queue.SimpleQueue()
        self._silent: set[str] = set()
        self._complaints: set[str] = set()
        self._interrupts = 0
        self._ends_by: float | None = None
        self._ranks: Process | None = None
        self._evaluator: Process | None = None

    def run(self) -> int:
        """Shows what the processes say until all have ended."""
        with handled(self._interrupt):
            try:
                return self._verdict(self._run())
            finally:  # they have ended, unless nobody can read what they say any more
                for process in (self._ranks, self._evaluator):
                    if process is not None:
                        process.end()

    def _run(self) -> int:
        self._ranks = Process("ranks", self._line, self._lines)
        if self._interrupts:
            self._end_now(self._ranks)
        code = self._follow(self._ranks)
        self._ends_by = None  # the evaluator may take its time
        if self._evaluator is None:
            return code
        if code or self._interrupts > 1:
            self._evaluator.handle.terminate()
        return code or self._follow(self._evaluator)

    def _verdict(self, code: int) -> int:
        ended = self.summary.ended
        interrupted = self._interrupts or (ended is not None and ended.reason == "interrupted")
        cut_off = self._interrupts > 1 or (self._interrupts and self.summary.started is None)
        if cut_off or (interrupted and (not code or code > SIGNALLED)):
            return INTERRUPTED
        return TransportError.exit_code if code > SIGNALLED else code  # a rank was killed

    def _follow(self, process: Process) -> int:
        """Shows lines, whoever says them, until this process says no more; its exit code."""
        while process.name not in self._silent:
            try:
                line = self._lines.get(timeout=self._patience())
            except queue.Empty:
                self._abandon(process)
                continue
            if line.text is None:
                self._silent.add(line.source)
            else:
                self._show(line.text)
        return process.wait()

    def _patience(self) -> float | None:
        """Seconds that mpirun has left to end; None: it is not about to."""
        return None if self._ends_by is None else max(0.0, self._ends_by - time.monotonic())

    def _expect_end(self) -> None:
        """From now on mpirun ends the ranks, which takes it for ever if a host has vanished."""
        self._ends_by = time.monotonic() + GRACE_S

    def _end_now(self, ranks: Process) -> None:
        self._expect_end()
        self._lines.put(Line("launcher", "interrupted: ending at once ..."))
        ranks.handle.terminate()

    def _abandon(self, process: Process) -> None:
        """Ends it all on this host."""
        self._ends_by = None
        self._display.note(ABANDONED)
        process.kill()

    def _show(self, text: str) -> None:
        event = parsed(text)
        if event is None:
            self._note(text)
            return
        self.summary.add(event)
        self._display.show(event)
        # Not before: the mark of an earlier end is gone now, which an evaluator would end at.
        if isinstance(event, Started) and self._settings.evaluator == "local":
            command = evaluator_command(self._settings)
            self._evaluator = Process("evaluator", command, self._lines)

    def _note(self, text: str) -> None:
        """Shows a line. What several ranks have to say, such as a missing file, it shows once."""
        if text.startswith("atomo: rank "):
            self._expect_end()
            complaint = text.split(": ", 2)[-1]
            if complaint in self._complaints:
                return
            self._complaints.add(complaint)
        self._display.note(text)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        """Ctrl-C: once for a checkpoint and a clean end, twice for an end."""
        self._interrupts += 1
        if self._ranks is None:
            return
        if self._ranks.handle.poll() is not None:
            if self._evaluator is not None:
                self._evaluator.handle.terminate()
        # Through the queue: the signal may have come in the middle of writing or awaiting a line.
        elif self._interrupts > 1 or self.summary.started is None:
            self._end_now(self._ranks)
        else:
            text = "interrupted: finishing the step and writing a checkpoint ..."
            self._lines.put(Line("launcher", text))
            # mpirun passes this signal on to every rank, on every host.
            self._ranks.handle.send_signal(signal.SIGUSR1)


def parsed(text: str) -> Event | Evaluation | None:
    """The record in a line, or None where it is words, or a record that was torn on its way."""
    if not text.startswith(EVENT_MARK):
        return None
    try:
        values = json.loads(text[1:])
        return Evaluation(**values) if "event" not in values else from_json(text[1:])
    except (ValueError, TypeError, KeyError):
        return None


def evaluator_command(settings: Settings) -> list[str]:
    """The evaluator of a run, beside it."""
    return [
        sys.executable,
        "-m",
        "atomo",
        "evaluate",
        "--events=json",
        f"--model-dir={settings.train_dir}",
        f"--data-dir={settings.data_dir}",
        f"--eval-batch-size={settings.test_batch_size}",
        "--poll-interval=0.2",
        "--threads=1",  # the cores are the workers'
    ]
