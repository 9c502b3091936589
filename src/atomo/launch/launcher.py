"""Starts a job, shows it, and ends with its exit code."""

import json
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import FrameType
from typing import final

from rich.console import Console

from atomo.arguments import to_arguments
from atomo.config import Settings
from atomo.errors import CUT_OFF, INTERRUPTED, TransportError
from atomo.launch.display import Live
from atomo.launch.last_words import FAREWELL, WITHOUT_END, abandoned, last_words, stopped
from atomo.launch.lines import Display, Plain
from atomo.launch.mpirun import command, evaluator_command, split
from atomo.launch.place import claimed, located
from atomo.launch.published_lines import PublishedLines
from atomo.launch.reach import Reach, shell
from atomo.launch.restarts import restarted
from atomo.launch.slurm import SRUN
from atomo.launch.streams import EVENT_MARK, GRACE_S, Line, Process
from atomo.launch.summary import Summary
from atomo.launch.whereabouts import fitted, hosts_of, ranks_at
from atomo.program import handled
from atomo.training.evaluation import Evaluation
from atomo.training.events import Event, Fence, Started, from_json

__all__ = ["launch"]


def launch(settings: Settings, console: Console, name: str = "") -> int:
    """Runs the job of `settings` to its end and returns the exit code.

    Args:
        settings: as they were given.
        console: shows the run.
        name: of a folder, where none was given; empty: one that says what is trained.

    Raises:
        ConfigError: a setting does not hold; nothing was started.
    """
    given = bool(settings.train_dir)
    settings = located(settings, name)
    command(settings, to_arguments(settings))  # before anything is made: it may be refused
    settings = claimed(settings, given)
    display, summary = display_of(settings, console), Summary()
    reach = Reach(hosts_of(settings), SRUN if settings.slurm else shell(split(settings.mpi_args)))

    def attempt(chosen: Settings, away: frozenset[str]) -> Supervisor:
        chosen = fitted(chosen, away)
        line, hosts = command(chosen, to_arguments(chosen), away), ranks_at(chosen, away)

        def fence(silent: Fence) -> None:
            if hosts:
                reach.kill(hosts[silent.rank], silent.pid, silent.started, if_stuck=silent.if_stuck)

        return Supervisor(chosen, line, display, summary, fence)

    try:
        code = restarted(settings, attempt, summary, display, reach.lost)
    finally:
        reach.close()
        display.close()
    if summary.last or not code:
        console.print(summary.table())
    return code


def display_of(settings: Settings, console: Console) -> Display:
    """What shows the run."""
    if settings.log_format == "atomo":
        return PublishedLines(sys.stdout)
    return Live(console) if console.is_terminal else Plain(sys.stdout, settings.log_interval)


SIGNALLED = 128  # exit codes above it are this plus a signal
LOOK_S = 1.0  # between two looks at a process that says nothing
SOON_S = 0.02  # and at one that has said its last


@final
class Supervisor:
    """The processes of one run, and what becomes of them."""

    def __init__(
        self,
        settings: Settings,
        line: Sequence[str],
        display: Display,
        summary: Summary | None = None,
        fence: Callable[[Fence], None] | None = None,
    ) -> None:
        """A run that is not started yet.

        Args:
            settings: of it.
            line: the command that starts its ranks.
            display: shows what they say.
            summary: takes in what they come to; None: a new one.
            fence: has a rank killed on its host; None: nobody does.
        """
        self.summary = Summary() if summary is None else summary
        self._settings, self._line, self._display = settings, line, display
        self._fence = fence
        self._lines: queue.SimpleQueue[Line] = queue.SimpleQueue()
        self._silent: set[str] = set()
        self._complaints: set[str] = set()
        self._interrupts = 0
        self._begun = False  # whether the ranks have met
        self._cut_off = False  # by an interrupt that the ranks were given no time for
        self._told: set[str] = set()  # which processes were told to end
        self._ends_by: float | None = None
        self._stopped_since: float | None = None
        self._ranks: Process | None = None
        self._evaluator: Process | None = None

    @property
    def interrupted(self) -> bool:
        """Whether it was told to end, from here or at the master."""
        ended = self.summary.ended
        return self._interrupts > 0 or (ended is not None and ended.reason == "interrupted")

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
        code = self._excused(self._follow(self._ranks))
        if not code and self.summary.ended is None and not self._interrupts:
            self._display.note(WITHOUT_END)  # mpirun does not always tell that ranks were killed
            code = TransportError.exit_code
        self._ends_by = None  # the evaluator may take its time
        if self._evaluator is None:
            return code
        if code or self._interrupts > 1 or "evaluator" in self._told:
            self._end_evaluator()
        return code or self._follow(self._evaluator)

    def _excused(self, code: int) -> int:
        """A run that is over is a success, although a rank could not take its leave of MPI."""
        if code == CUT_OFF and self.summary.ended is not None:
            self._display.note(FAREWELL)
            return 0
        return code

    def _verdict(self, code: int) -> int:
        cut_off = self._interrupts > 1 or self._cut_off
        if cut_off or (self.interrupted and (not code or code > SIGNALLED)):
            return INTERRUPTED
        return TransportError.exit_code if code > SIGNALLED else code  # a rank was killed

    def _follow(self, process: Process) -> int:
        """Shows lines, whoever says them, until this process has ended; its exit code."""
        while process.name not in self._silent or process.handle.poll() is None:
            try:
                line = self._lines.get(timeout=self._patience(process))
            except queue.Empty:
                self._look_at(process)
                continue
            if line.text is None:
                self._fell_silent(line.source)
            else:
                self._show(line.text)
        return process.wait()

    def _fell_silent(self, source: str) -> None:
        """A process is ending. Of one that was killed nobody else says so."""
        self._silent.add(source)
        process = self._ranks if source == "ranks" else self._evaluator
        if process is None or source in self._told:
            return
        with suppress(subprocess.TimeoutExpired):
            process.handle.wait(LOOK_S)
        if process.killed_by:
            self._display.note(last_words(source, process.killed_by, self._settings.train_dir))

    def _patience(self, process: Process) -> float:
        """Seconds until the next look at a process that says nothing."""
        look_s = SOON_S if process.name in self._silent else LOOK_S
        if self._ends_by is None:
            return look_s
        return min(look_s, max(0.0, self._ends_by - time.monotonic()))

    def _look_at(self, process: Process) -> None:
        """Ends a process that will not end by itself."""
        now = time.monotonic()
        if self._ends_by is not None and now >= self._ends_by:
            self._abandon(process, abandoned(process.name, GRACE_S))
        elif not process.stopped():
            self._stopped_since = None
        elif self._stopped_since is None:
            self._stopped_since = now
        elif now - self._stopped_since >= self._settings.timeout:
            self._abandon(process, stopped(process.name, self._settings.timeout))

    def _expect_end(self) -> None:
        """From now on mpirun ends the ranks, which takes it for ever if a host has vanished."""
        self._ends_by = time.monotonic() + GRACE_S

    def _end_now(self, ranks: Process) -> None:
        self._cut_off = True
        self._told |= {"ranks", "evaluator"}
        self._expect_end()
        self._lines.put(Line("launcher", "interrupted: ending at once ..."))
        ranks.handle.terminate()

    def _end_evaluator(self) -> None:
        self._told.add("evaluator")
        if self._evaluator is not None:  # else it ends as soon as it is there
            self._expect_end()
            self._evaluator.handle.terminate()

    def _abandon(self, process: Process, why: str) -> None:
        """Ends it all on this host."""
        self._ends_by = None
        self._told.add(process.name)
        self._display.note(why)
        process.kill()

    def _show(self, text: str) -> None:
        event = parsed(text)
        if event is None:
            self._note(text)
            return
        if isinstance(event, Fence):
            if self._fence is not None:
                self._fence(event)
            return
        self.summary.add(event)
        self._display.show(event)
        self._begun = self._begun or isinstance(event, Started)
        # Not before: the mark of an earlier end is gone now, which an evaluator would end at.
        if isinstance(event, Started) and self._settings.evaluator == "local":
            self._start_evaluator()

    def _start_evaluator(self) -> None:
        if self._cut_off:
            return
        self._evaluator = Process("evaluator", evaluator_command(self._settings), self._lines)
        if "evaluator" in self._told:  # an interrupt came while it was being started
            self._end_evaluator()

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
        """Ctrl-C: once for a checkpoint and a clean end, twice for an end.

        It may come between any two lines of this class: what it finds not there yet is ended by who
        makes it, and once the training has ended there is only the evaluator to end, also while
        mpirun, which would pass a signal on to nobody, is still there.
        """
        self._interrupts += 1
        if self._ranks is None:
            return
        running = self._ranks.handle.poll() is None
        trained = not running or self.summary.ended is not None
        if trained:
            self._end_evaluator()
        if running and (self._interrupts > 1 or not self._begun):
            self._end_now(self._ranks)
        elif not trained:
            # Through the queue: the signal may have come in the middle of writing a line.
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
