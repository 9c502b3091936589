"""Starts a job, shows it, and ends with its exit code."""

import json
import queue
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import final

from rich.console import Console

from atomo.arguments import to_arguments
from atomo.config import Settings
from atomo.errors import INTERRUPTED, TransportError
from atomo.launch.display import Display, Live, Plain
from atomo.launch.mpirun import command
from atomo.launch.place import located
from atomo.launch.streams import EVENT_MARK, Line, Process
from atomo.launch.summary import Summary
from atomo.training.events import from_json
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


SIGNALLED = 128  # exit codes above it are this plus a signal


@final
class Job:
    """The processes of one run, and what becomes of them."""

    def __init__(self, settings: Settings, line: Sequence[str], display: Display) -> None:
        self.summary = Summary()
        self._display = display
        self._lines: queue.SimpleQueue[Line] = queue.SimpleQueue()
        self._silent: set[str] = set()
        self._complaints: set[str] = set()
        self._interrupts = 0
        self._ranks = Process("ranks", line, self._lines)
        self._evaluator = (
            Process("evaluator", evaluator_command(settings), self._lines)
            if settings.evaluator == "local"
            else None
        )

    def run(self) -> int:
        """Shows what the processes say until all have ended."""
        with handled(self._interrupt):
            self._follow("ranks")
            code = self._ranks.wait()
            if self._evaluator is None:
                return self._verdict(code)
            if code or self._interrupts > 1:
                self._evaluator.handle.terminate()
            self._follow("evaluator")
            evaluator_code = self._evaluator.wait()
        return self._verdict(code) or evaluator_code

    def _verdict(self, code: int) -> int:
        interrupted = self._interrupts or (
            self.summary.ended is not None and self.summary.ended.reason == "interrupted"
        )
        if interrupted:
            return INTERRUPTED
        return TransportError.exit_code if code > SIGNALLED else code  # a rank was killed

    def _follow(self, name: str) -> None:
        """Shows lines, whoever says them, until this process says no more."""
        while name not in self._silent:
            line = self._lines.get()
            if line.text is None:
                self._silent.add(line.source)
            else:
                self._show(line.text)

    def _show(self, text: str) -> None:
        if not text.startswith(EVENT_MARK):
            self._note(text)
            return
        values = json.loads(text[1:])
        event = Evaluation(**values) if "event" not in values else from_json(text[1:])
        self.summary.add(event)
        self._display.show(event)

    def _note(self, text: str) -> None:
        """Shows a line. What several ranks have to say, such as a missing file, it shows once."""
        if text.startswith("atomo: rank "):
            complaint = text.split(": ", 2)[-1]
            if complaint in self._complaints:
                return
            self._complaints.add(complaint)
        self._display.note(text)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        """Ctrl-C: once for a checkpoint and a clean end, twice for an end."""
        self._interrupts += 1
        begun = self.summary.started is not None
        if self._interrupts > 1 or not begun:
            self._ranks.handle.terminate()
            return
        self._display.note("interrupted: finishing the step and writing a checkpoint ...")
        # mpirun passes this signal on to every rank, on every host.
        self._ranks.handle.send_signal(signal.SIGUSR1)


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


@contextmanager
def handled(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Calls `handler` for Ctrl-C and SIGTERM, for as long as the block lasts."""
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
