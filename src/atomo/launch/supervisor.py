"""A supervisor of one run: shows the output of its processes, and ends processes that hang."""

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
from atomo.launch.verdict import SIGNALLED, TRANSIENT, Observations, training_exit_code
from atomo.training.evaluation.evaluation import Evaluation
from atomo.training.job.events import Ended, Event, Failed, Fence, Met, Started, from_json

__all__ = ["Supervisor", "parse_record"]

LOOK_S = 1.0  # between two checks of a process without output
SOON_S = 0.02  # between two checks of a process that has closed its output
STARTING_S = 120.0  # minimum time limit for all ranks to start and to meet, also on busy hosts
LEAVING_S = 60.0  # time to finalize MPI after the run, in addition to --timeout


@dataclass(frozen=True)
class Limit:
    """A deadline after which a process that makes no progress is ended."""

    seconds: float
    words: Callable[[str, float], str]  # the reason, from the process's name and these seconds
    since: float = field(default_factory=time.monotonic)

    @property
    def at(self) -> float:
        return self.since + self.seconds


@final
class Supervisor:
    """A supervisor of one run: starts its processes, shows their output, and ends them."""

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
            settings: the settings of the run.
            line: the command line that starts its ranks.
            display: shows the output of the processes.
            summary: collects the results of the run; None: a new summary.
            fence: kills a rank on its host; None: requests to kill a rank are ignored.
        """
        self.summary = Summary() if summary is None else summary
        self._settings, self._line, self._display = settings, line, display
        self._fence = fence
        self._lines: queue.SimpleQueue[Line] = queue.SimpleQueue()
        self._silent: set[str] = set()
        self._complaints: set[str] = set()
        self._transient = False  # True after an error of mpirun that a new start does not have
        self._interrupts = 0
        self._met = False  # True once all ranks have met
        self._begun = False  # True once the first step may begin
        self._failed: int | None = None  # the exit code of the first rank that could not go on
        self._cut_off = False  # True after an interrupt that left the ranks no time to end
        self._ending: set[str] = set()  # names of the processes that the launcher has asked to end
        self._stage: Limit | None = None  # set until the ranks have met, and after the run
        self._limit: Limit | None = None  # set when processes were asked to end, also by a signal
        self._overdue = False  # True if mpirun was ended because it outlived the run
        self._stopped_since: float | None = None
        self._ranks: Process | None = None
        self._evaluator: Process | None = None

    @property
    def interrupted(self) -> bool:
        """True if the run was interrupted, here or at the master."""
        ended = self.summary.ended
        return self._interrupts > 0 or (ended is not None and ended.reason == "interrupted")

    def run(self) -> int:
        """Shows the output of the processes until all have ended, and returns the exit code."""
        with signals_handled(self._interrupt):
            try:
                return self._verdict(self._run())
            finally:  # all have ended, unless an error stopped the reading of their output
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
            if code or self._interrupts > 1 or "evaluator" in self._ending:
                self._end_evaluator()
            self._follow(self._evaluator)  # its exit code does not count for the run
        return code

    def _judged(self, code: int) -> int:
        """Returns the exit code of the training; shows a line where it differs from mpirun's."""
        seen = Observations(
            failed=self._failed,
            ended=self.summary.ended is not None,
            met=self._met,
            complained=bool(self._complaints),
            ended_by_launcher="ranks" in self._ending or self._interrupts > 0,
            overdue=self._overdue,
            mpi_args=self._settings.mpi_args,
            transient=self._transient,
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
        """Shows the lines of all processes until this process has ended; returns its exit code."""
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
        """Handles the end of a process's output. Reports a process that was killed, which cannot
        report this itself, and the checkpoints that a failed evaluator leaves.
        """
        self._silent.add(source)
        process = self._ranks if source == "ranks" else self._evaluator
        if process is None or source in self._ending:
            return
        with suppress(subprocess.TimeoutExpired):
            process.handle.wait(LOOK_S)
        if process.killed_by:
            self._display.note(killed_text(source, process.killed_by, self._settings.train_dir))
        elif source == "evaluator" and process.handle.returncode:
            code, folder = process.handle.returncode, self._settings.train_dir
            self._display.note(evaluator_failed_text(code, folder))

    def _patience(self, process: Process) -> float:
        """Returns the seconds until the next check of a process without output."""
        look_s = SOON_S if process.name in self._silent else LOOK_S
        limit = self._nearest()
        return look_s if limit is None else min(look_s, max(0.0, limit.at - time.monotonic()))

    def _nearest(self) -> Limit | None:
        limits = [limit for limit in (self._stage, self._limit) if limit is not None]
        return min(limits, key=lambda limit: limit.at, default=None)

    def _look_at(self, process: Process) -> None:
        """Ends a process that is past its deadline, or stopped for longer than `--timeout`."""
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
        """Sets the deadline by which mpirun must end the ranks: it hangs if a host has vanished."""
        self._limit = Limit(GRACE_S, hanging_text)

    def _end_now(self, ranks: Process) -> None:
        self._cut_off = True
        self._ending |= {"ranks", "evaluator"}
        self._expect_end()
        self._lines.put(Line("launcher", "interrupted: ending now ..."))
        ranks.handle.terminate()

    def _give_up(self, exit_code: int) -> None:
        """Ends the ranks because one failed; keeps the exit code of the first failure."""
        if self._failed is None and self._ranks is not None:
            self._failed = exit_code
            self._ending.add("ranks")
            self._expect_end()
            self._ranks.handle.terminate()

    def _end_evaluator(self) -> None:
        self._ending.add("evaluator")
        if self._evaluator is not None:  # otherwise `_start_evaluator` ends it
            self._expect_end()
            self._evaluator.handle.terminate()

    def _abandon(self, process: Process, why: str) -> None:
        """Kills the process and its children on this host."""
        self._stage = self._limit = None
        self._ending.add(process.name)
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
            self._met, self._stage = (
                True,
                None,
            )  # from now on the ranks have own limits
            return
        self.summary.add(event)
        self._display.show(event)
        self._begun = self._begun or isinstance(event, Started)
        # Not earlier: an earlier run's finished marker, which ends an evaluator, is gone only now.
        if isinstance(event, Started) and self._settings.evaluator == "local":
            self._start_evaluator()
        elif isinstance(event, Ended):
            self._stage = Limit(self._settings.timeout + LEAVING_S, mpirun_hanging_text)

    def _start_evaluator(self) -> None:
        if self._cut_off:
            return
        self._evaluator = Process("evaluator", evaluator_command(self._settings), self._lines)
        if "evaluator" in self._ending:  # an interrupt came while it was being started
            self._end_evaluator()

    def _note(self, text: str) -> None:
        """Shows a line; an error that several ranks report, such as a missing file, only once."""
        if text.startswith("atomo: rank "):
            self._expect_end()
            complaint = text.split(": ", 2)[-1]
            if complaint in self._complaints:
                return
            self._complaints.add(complaint)
        self._transient = self._transient or text.startswith(TRANSIENT)
        self._display.note(text)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        """Handles Ctrl-C: once for a checkpoint and a clean end, twice for an end.

        The signal may arrive between any two lines of this class. A process that is not started yet
        is ended by the method that starts it. After the end of the training only the evaluator is
        ended, even while mpirun still runs: it has no ranks to forward a signal to.
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
            # mpirun forwards this signal to every rank, on every host.
            self._ranks.handle.send_signal(signal.SIGUSR1)


def parse_record(text: str) -> Event | Evaluation | None:
    """Returns the record of a line; None for plain text, and for a record that is cut off."""
    if not text.startswith(EVENT_MARK):
        return None
    try:
        values = json.loads(text[1:])
        return Evaluation(**values) if "event" not in values else from_json(text[1:])
    except (ValueError, TypeError, KeyError):
        return None
