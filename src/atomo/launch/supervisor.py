"""The processes of one run: what they say is shown, and none of them is waited for in vain."""

import json
import queue
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import final

from atomo.config.settings import Settings
from atomo.core.process.program import signals_handled
from atomo.errors import INTERRUPTED, TransportError
from atomo.launch.display.lines import Display
from atomo.launch.display.summary import Summary
from atomo.launch.exit_messages import (
    evaluator_failed_text,
    hanging_text,
    killed_text,
    mpirun_hanging_text,
    never_met_text,
    stopped_text,
)
from atomo.launch.jobs.mpirun import evaluator_command
from atomo.launch.jobs.streams import EVENT_MARK, GRACE_S, Line, Process
from atomo.launch.verdict import SIGNALLED, Observations, training_exit_code
from atomo.training.evaluation.evaluation import Evaluation
from atomo.training.job.events import Ended, Event, Failed, Fence, Met, Started, from_json

__all__ = ["Supervisor", "parse_record"]

LOOK_S = 1.0  # between two looks at a process that says nothing
SOON_S = 0.02  # and at one that has said its last
STARTING_S = 120.0  # that all ranks have at least to start and to meet, on however busy hosts
LEAVING_S = 60.0  # that they have beside --timeout for their goodbye


@dataclass(frozen=True)
class Limit:
    """A deadline after which a process that makes no progress is ended."""

    seconds: float
    words: Callable[[str, float], str]  # why, of the process's name and these seconds
    since: float = field(default_factory=time.monotonic)

    @property
    def at(self) -> float:
        return self.since + self.seconds


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
        """Creates a run that is not started yet.

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
        self._met = False  # whether all ranks were there
        self._begun = False  # whether there was a first step to begin
        self._failed: int | None = None  # the exit code of the first rank that could not go on
        self._cut_off = False  # by an interrupt that the ranks were given no time for
        self._told: set[str] = set()  # which processes were told to end
        self._stage: Limit | None = None  # until the ranks have met, and once the run is over
        self._limit: Limit | None = None  # since they were told to end, as a signal may tell them
        self._overdue = False  # whether mpirun was ended since it outlived the run
        self._stopped_since: float | None = None
        self._ranks: Process | None = None
        self._evaluator: Process | None = None

    @property
    def interrupted(self) -> bool:
        """True if it was told to end, from here or at the master."""
        ended = self.summary.ended
        return self._interrupts > 0 or (ended is not None and ended.reason == "interrupted")

    def run(self) -> int:
        """Shows what the processes say until all have ended."""
        with signals_handled(self._interrupt):
            try:
                return self._verdict(self._run())
            finally:  # they have ended, unless nobody can read what they say any more
                for process in (self._ranks, self._evaluator):
                    if process is not None:
                        process.end()

    def _run(self) -> int:
        self._stage = Limit(max(self._settings.timeout, STARTING_S), never_met_text)
        self._ranks = Process("ranks", self._line, self._lines)
        if self._interrupts:
            self._end_now(self._ranks)
        code = self._judged(self._follow(self._ranks))
        self._stage = self._limit = None  # the evaluator may take its time
        if self._evaluator is not None:
            if code or self._interrupts > 1 or "evaluator" in self._told:
                self._end_evaluator()
            self._follow(self._evaluator)  # whose end, whatever it is, is no failure of the run
        return code

    def _judged(self, code: int) -> int:
        """Returns the exit code of the training, and a line that says so where it is
        not mpirun's.
        """
        seen = Observations(
            failed=self._failed,
            ended=self.summary.ended is not None,
            met=self._met,
            complained=bool(self._complaints),
            ended_by_launcher="ranks" in self._told or self._interrupts > 0,
            overdue=self._overdue,
            mpi_args=self._settings.mpi_args,
        )
        code, words = training_exit_code(code, seen)
        if words:
            self._display.note(words)
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
        """Handles the end of a process. Of one that was killed nobody else says so, and of an
        evaluator that failed nobody else says what it has not done.
        """
        self._silent.add(source)
        process = self._ranks if source == "ranks" else self._evaluator
        if process is None or source in self._told:
            return
        with suppress(subprocess.TimeoutExpired):
            process.handle.wait(LOOK_S)
        if process.killed_by:
            self._display.note(killed_text(source, process.killed_by, self._settings.train_dir))
        elif source == "evaluator" and process.handle.returncode:
            code, folder = process.handle.returncode, self._settings.train_dir
            self._display.note(evaluator_failed_text(code, folder))

    def _patience(self, process: Process) -> float:
        """Seconds until the next look at a process that says nothing."""
        look_s = SOON_S if process.name in self._silent else LOOK_S
        limit = self._nearest()
        return look_s if limit is None else min(look_s, max(0.0, limit.at - time.monotonic()))

    def _nearest(self) -> Limit | None:
        limits = [limit for limit in (self._stage, self._limit) if limit is not None]
        return min(limits, key=lambda limit: limit.at, default=None)

    def _look_at(self, process: Process) -> None:
        """Ends a process that will not end by itself."""
        now, limit = time.monotonic(), self._nearest()
        if limit is not None and now >= limit.at:
            self._overdue = limit.words is mpirun_hanging_text
            self._abandon(process, limit.words(process.name, limit.seconds))
        elif not process.stopped():
            self._stopped_since = None
        elif self._stopped_since is None:
            self._stopped_since = now
        elif now - self._stopped_since >= self._settings.timeout:
            timeout, folder = self._settings.timeout, self._settings.train_dir
            self._abandon(process, stopped_text(process.name, timeout, folder))

    def _expect_end(self) -> None:
        """Has mpirun end the ranks, which takes it for ever if a host has vanished."""
        self._limit = Limit(GRACE_S, hanging_text)

    def _end_now(self, ranks: Process) -> None:
        self._cut_off = True
        self._told |= {"ranks", "evaluator"}
        self._expect_end()
        self._lines.put(Line("launcher", "interrupted: ending at once ..."))
        ranks.handle.terminate()

    def _give_up(self, exit_code: int) -> None:
        """Ends the ranks, since one of them cannot go on; the first knows why."""
        if self._failed is None and self._ranks is not None:
            self._failed = exit_code
            self._told.add("ranks")
            self._expect_end()
            self._ranks.handle.terminate()

    def _end_evaluator(self) -> None:
        self._told.add("evaluator")
        if self._evaluator is not None:  # else it ends as soon as it is there
            self._expect_end()
            self._evaluator.handle.terminate()

    def _abandon(self, process: Process, why: str) -> None:
        """Ends it all on this host."""
        self._stage = self._limit = None
        self._told.add(process.name)
        self._display.note(why)
        process.kill()

    def _show(self, text: str) -> None:
        event = parse_record(text)
        if event is None:
            self._note(text)
            return
        if isinstance(event, Fence):
            if self._fence is not None:
                self._fence(event)
            return
        if isinstance(event, Failed):
            self._give_up(event.exit_code)
            return
        if isinstance(event, Met):
            self._met, self._stage = True, None  # from here on they bound their waits themselves
            return
        self.summary.add(event)
        self._display.show(event)
        self._begun = self._begun or isinstance(event, Started)
        # Not before: the mark of an earlier end is gone now, which an evaluator would end at.
        if isinstance(event, Started) and self._settings.evaluator == "local":
            self._start_evaluator()
        elif isinstance(event, Ended):
            self._stage = Limit(self._settings.timeout + LEAVING_S, mpirun_hanging_text)

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
        """Handles Ctrl-C: once for a checkpoint and a clean end, twice for an end.

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


def parse_record(text: str) -> Event | Evaluation | None:
    """Returns the record in a line, or None where it is words, or a record that was torn on its
    way.
    """
    if not text.startswith(EVENT_MARK):
        return None
    try:
        values = json.loads(text[1:])
        return Evaluation(**values) if "event" not in values else from_json(text[1:])
    except (ValueError, TypeError, KeyError):
        return None
