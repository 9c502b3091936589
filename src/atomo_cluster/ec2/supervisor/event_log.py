"""The event log of the supervisor, one JSON record per line.

`status` shows it. It is also the state of the supervisor, which continues from it after a restart.
"""

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import takewhile
from pathlib import Path
from typing import Final, final

from atomo_cluster.plain_files import append_plain

__all__ = ["DONE", "FAILED", "JOB", "JOINED", "LAUNCHED", "LOST", "NOTE", "OVER", "READY",
           "RESTART", "SEEN", "STARTED", "STOPPED", "UNSEEN", "WAITING", "Event", "EventLog",
           "folded", "idle_since", "parsed", "since_last", "unseen_since", "waits"]  # fmt: skip

JOB: Final = "job"  # a new job is handed over; later events belong to it
STARTED: Final = "started"
LOST: Final = "lost"  # hosts are gone, or are going
WAITING: Final = "waiting"  # AWS gives no new host, or its setup failed
LAUNCHED: Final = "launched"  # new hosts, which are then set up beside the job
READY: Final = "ready"  # new hosts are set up
JOINED: Final = "joined"  # the job has stopped, to start again with new hosts
RESTART: Final = "restart"  # the job is to be started again after a loss
DONE: Final = "done"
FAILED: Final = "failed"  # for good
STOPPED: Final = "stopped"  # by a person
UNSEEN: Final = "unseen"  # the folder of the jobs does not answer: nothing is seen training
SEEN: Final = "seen"  # it answers again
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
            with append_plain(self._path) as out:
                out.write(f"{json.dumps(asdict(event))}\n".encode())
                out.flush()
                os.fsync(out.fileno())
        except OSError as error:  # a full disk is no reason not to end hosts
            sys.stderr.write(f"{self._path}: {error}: {text}\n")

    def note(self, text: str) -> None:
        """Adds a note, unless one of the notes since the last other event has the same text."""
        latest = takewhile(lambda event: event.kind == NOTE, reversed(self.events))
        if text not in [event.text for event in (*self.events[-1:], *latest)]:
            self.tell(NOTE, text)

    @property
    def job(self) -> str:
        """The text that tells the job from others."""
        return next((event.text for event in self.of_job if event.kind == JOB), "")

    @property
    def of_job(self) -> list[Event]:
        """The events since the job was handed over."""
        return since_last(self.events, JOB) or list(self.events)

    @property
    def restarts(self) -> int:
        """The number of restarts of the job after losses."""
        return sum(event.kind == RESTART for event in self.of_job)

    @property
    def outcome(self) -> str:
        """The outcome of the job: done, failed or stopped; empty: none yet."""
        return next((event.kind for event in reversed(self.of_job)
                     if event.kind in (DONE, FAILED, STOPPED)), "")  # fmt: skip

    @property
    def idle_since(self) -> datetime | None:
        """The time at which the job last stopped training; None: it has started since."""
        return idle_since(self.of_job)

    @property
    def unseen_since(self) -> datetime | None:
        """The time since which the folder of the jobs does not answer; None: it does."""
        return unseen_since(self.of_job)

    @property
    def waits(self) -> list[Event]:
        """The failed requests for hosts since the last success."""
        return waits(self.of_job)


def since_last(events: Sequence[Event], *kinds: str) -> list[Event]:
    """Returns the events from the last one of some kinds on; none if there is none."""
    marks = [number for number, event in enumerate(events) if event.kind in kinds]
    return list(events[marks[-1] :]) if marks else []


def idle_since(events: Sequence[Event]) -> datetime | None:
    """Returns the time at which a job last stopped training; None: it has started since.

    A job that waits for hosts is idle, as one that has ended is. So is one that cannot be seen,
    until it is seen again.
    """
    ends = (JOB, RESTART, JOINED, DONE, FAILED, STOPPED, UNSEEN)
    first: Event | None = None
    for event in since_last(events, STARTED) or events:
        if event.kind == SEEN and first is not None and first.kind == UNSEEN:
            first = None
        elif event.kind in ends and first is None:
            first = event
    return None if first is None else datetime.fromisoformat(first.when)


def unseen_since(events: Sequence[Event]) -> datetime | None:
    """Returns the time since which the folder of the jobs does not answer; None: it does."""
    latest = since_last(events, UNSEEN, SEEN, JOB)[:1]
    return next(
        (datetime.fromisoformat(event.when) for event in latest if event.kind == UNSEEN), None
    )


def waits(events: Sequence[Event]) -> list[Event]:
    """Returns the failed requests for hosts since the last success."""
    latest = since_last(events, READY, JOB) or events
    return [event for event in latest if event.kind == WAITING]


def folded(events: Sequence[Event]) -> list[Event]:
    """Returns the events with the last one of each row of failed requests alone.

    >>> refused = [Event(f"22:{n}0", WAITING, f"request {n}") for n in (1, 2)]
    >>> [event.text for event in folded([Event("22:00", LOST, "gone: i-1"), *refused])]
    ['gone: i-1', 'request 2']
    """
    following = (*(event.kind for event in events[1:]), "")
    return [event for event, kind in zip(events, following, strict=False)
            if not event.kind == kind == WAITING]  # fmt: skip
