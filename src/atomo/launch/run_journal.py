"""The journal of a run: messages in events.jsonl, and the page about the run at its end.

A file server that hangs, a full disk or a defect in the page must not delay or fail a run. So a
thread of its own writes, errors are dropped, and the end of the run waits for it a bounded time.

    {"event": "Launched", "at": 1764000000.0, "command": "atomo train ...", "versions": ...}
    {"event": "Caution", "at": ..., "text": ...}
    {"event": "Exited", "at": ..., "exit_code": 0}
"""

import os
import platform
import queue
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, final

from atomo.config.settings import Settings
from atomo.core.distribution import versions
from atomo.core.visible import shorten
from atomo.launch.display.lines import Display
from atomo.report.records import EVENTS_FILE
from atomo.report.run_page import write_report
from atomo.training.evaluation.evaluation import Evaluation
from atomo.training.job.events import Event, Saved, Started, StepDone
from atomo.training.records.json_lines import append_line

__all__ = ["RunJournal", "journal_of"]

PATIENCE_S: Final = 60.0  # of the end of a run, for a hanging file server
MOST: Final = 5_000  # records of a job
LONGEST: Final = 2_000  # characters of a message
LISTED: Final = (Evaluation, Saved, StepDone)  # events with files of their own


@final
class RunJournal:
    """A display that records the messages of a run, and shows all events on another display.

    Nothing is written before the first step begins: a job that is refused must not change the
    folder.
    """

    def __init__(self, display: Display, settings: Settings) -> None:
        self._display, self._folder = display, Path(settings.train_dir)
        self._early: list[Mapping[str, Any]] | None = [launch_record()]
        self._tasks: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._count = 0
        self._thread = threading.Thread(target=self._work, name="journal", daemon=True)
        self._thread.start()

    def show(self, event: Event | Evaluation) -> None:
        self._display.show(event)
        if not isinstance(event, LISTED):
            text = {"text": event.text} if hasattr(event, "text") else {}
            self._record({"event": type(event).__name__, **asdict(event), **text})
        if isinstance(event, Started) and self._early is not None:
            early, self._early = self._early, None
            for record in early:
                self._record(record)

    def note(self, line: str) -> None:
        self._display.note(line)
        self._record({"event": "Note", "text": shorten(line, LONGEST)})

    def close(self) -> None:
        self._display.close()

    def end(self, exit_code: int | None) -> None:
        """Records the end of the job, writes the page, and waits until both are done."""
        self._record({"event": "Exited", "exit_code": exit_code})
        if self._early is None:
            self._tasks.put(lambda: write_report(self._folder))
        self._tasks.put(None)
        self._thread.join(PATIENCE_S)

    def _record(self, record: Mapping[str, Any]) -> None:
        record = {"at": round(time.time(), 3), **record}
        if self._early is not None:
            self._early.append(record)
        elif self._count < MOST:
            self._count += 1
            self._tasks.put(lambda: append_line(self._folder / EVENTS_FILE, record))

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            with suppress(Exception):  # of a record about a run, which must not harm the run
                task()


@contextmanager
def journal_of(settings: Settings, display: Display) -> Iterator[tuple[Display, list[int]]]:
    """Yields the display of a job, and a list for its exit code; records the job if `--report`
    says so.
    """
    codes: list[int] = []
    if not settings.report:
        yield display, codes
        return
    journal = RunJournal(display, settings)
    try:
        yield journal, codes
    finally:
        journal.end(codes[-1] if codes else None)


def launch_record() -> dict[str, Any]:
    """Returns the record of the start of a job: command, versions and machine."""
    system = f"{platform.system()} {platform.release()} on {platform.machine()}"
    return {
        "event": "Launched",
        "at": round(time.time(), 3),
        "command": shorten(shlex.join(["atomo", *sys.argv[1:]]), LONGEST),
        "versions": versions(),
        "machine": f"{platform.node()}: {system}, {os.cpu_count()} cores",
    }
