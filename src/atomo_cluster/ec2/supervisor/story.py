"""What has happened, a line of JSON each. It is what `status` tells, and the supervisor's memory:
one that is started again, as after a restart of its host, goes on from here.
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
           "Event", "Story", "parsed"]  # fmt: skip

JOB: Final = "job"  # a new one is handed over; what follows is of it
STARTED: Final = "started"
LOST: Final = "lost"  # hosts are gone, or are going
RESTART: Final = "restart"  # the job is to be started again
DONE: Final = "done"
FAILED: Final = "failed"  # for good
STOPPED: Final = "stopped"  # by a person
OVER: Final = "over"  # hosts are told to end
NOTE: Final = "note"


@dataclass(frozen=True)
class Event:
    """One thing that happened."""

    when: str  # ISO 8601
    kind: str
    text: str


def parsed(text: str) -> list[Event]:
    """The events of a story; a line that was torn is left out."""
    found = []
    for line in text.splitlines():
        try:
            found.append(Event(**json.loads(line)))
        except (ValueError, TypeError):
            continue
    return found


@final
class Story:
    """The story of a cluster, on the master's disk."""

    def __init__(self, path: Path, now: Callable[[], datetime]) -> None:
        self._path, self._now = path, now
        self.events = parsed(path.read_text()) if path.exists() else []

    def tell(self, kind: str, text: str) -> None:
        """Adds an event. One that cannot be written is known until the supervisor ends."""
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
        """Adds what is good to know, once in a row."""
        if not self.events or self.events[-1].text != text:
            self.tell(NOTE, text)

    @property
    def of_job(self) -> list[Event]:
        """What happened since the job was handed over."""
        marks = [number for number, event in enumerate(self.events) if event.kind == JOB]
        return self.events[marks[-1] :] if marks else list(self.events)

    @property
    def restarts(self) -> int:
        """How often the job was started again."""
        return sum(event.kind == RESTART for event in self.of_job)

    @property
    def outcome(self) -> str:
        """What became of the job: done, failed or stopped; empty: nothing yet."""
        return next((one.kind for one in reversed(self.of_job)
                     if one.kind in (DONE, FAILED, STOPPED)), "")  # fmt: skip

    @property
    def idle_since(self) -> datetime | None:
        """When the job ended for good."""
        return next((datetime.fromisoformat(one.when) for one in reversed(self.of_job)
                     if one.kind in (DONE, FAILED, STOPPED)), None)  # fmt: skip
