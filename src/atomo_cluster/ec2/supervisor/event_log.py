"""The event log of the supervisor, one JSON record per line.

`status` shows it. It is also the state of the supervisor, which continues from it after a restart.
"""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Final, final

__all__ = ["DONE", "FAILED", "JOB", "LOST", "NOTE", "OVER", "RESTART", "STARTED", "STOPPED",
           "Event", "EventLog", "parsed"]  # fmt: skip

JOB: Final = "job"  # a new job is handed over; later events belong to it
STARTED: Final = "started"
LOST: Final = "lost"  # hosts are gone, or are going
RESTART: Final = "restart"  # the job is to be started again
DONE: Final = "done"
FAILED: Final = "failed"  # for good
STOPPED: Final = "stopped"  # by a person
OVER: Final = "over"  # hosts are ordered to end
NOTE: Final = "note"


@dataclass(frozen=True)
class Event:
    """An event."""

    when: str  # ISO 8601
    kind: str
    text: str


def parsed(text: str) -> list[Event]:
    """Parses events; a truncated line is left out."""
    events = []
    for line in text.splitlines():
        try:
            events.append(Event(**json.loads(line)))
        except (ValueError, TypeError):
            continue
    return events


@final
class EventLog:
    """The event log of a cluster, on the master's disk."""

    def __init__(self, path: Path, now: Callable[[], datetime]) -> None:
        self._path, self._now = path, now
        self.events = parsed(path.read_text()) if path.exists() else []

    def tell(self, kind: str, text: str) -> None:
        """Adds an event. If the disk fails, the event stays in memory."""
        event = Event(self._now().isoformat(timespec="seconds"), kind, text)
        self.events.append(event)
        try:
            with self._path.open("a") as out:
                out.write(json.dumps(asdict(event)) + "\n")
                out.flush()
                os.fsync(out.fileno())
        except OSError as error:  # a full disk is no reason not to end hosts
            sys.stderr.write(f"{self._path}: {error}: {text}\n")

    def note(self, text: str) -> None:
        """Adds a note, unless the last event has the same text."""
        if not self.events or self.events[-1].text != text:
            self.tell(NOTE, text)

    @property
    def of_job(self) -> list[Event]:
        """The events since the job was handed over."""
        marks = [number for number, event in enumerate(self.events) if event.kind == JOB]
        return self.events[marks[-1] :] if marks else list(self.events)

    @property
    def restarts(self) -> int:
        """The number of restarts of the job."""
        return sum(event.kind == RESTART for event in self.of_job)

    @property
    def outcome(self) -> str:
        """The outcome of the job: done, failed or stopped; empty: none yet."""
        return next((event.kind for event in reversed(self.of_job)
                     if event.kind in (DONE, FAILED, STOPPED)), "")  # fmt: skip

    @property
    def idle_since(self) -> datetime | None:
        """The time at which the job ended for good."""
        return next((datetime.fromisoformat(event.when) for event in reversed(self.of_job)
                     if event.kind in (DONE, FAILED, STOPPED)), None)  # fmt: skip
