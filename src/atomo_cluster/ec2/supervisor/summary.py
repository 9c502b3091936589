"""The summary of an event log for `status`: what the supervisor waits for, and for how long."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from atomo_cluster.ec2.supervisor.event_log import (
    DONE,
    FAILED,
    JOB,
    STOPPED,
    Event,
    folded,
    idle_since,
    since_last,
    unseen_since,
    waits,
)

__all__ = ["Summary", "story_lines", "summary"]

OUTCOMES = (DONE, FAILED, STOPPED)


@dataclass(frozen=True)
class Summary:
    """The waits of a supervisor, in ISO 8601; None: it has none."""

    waiting_since: str | None  # since then AWS gives no new host
    requests: int  # the failed requests for hosts since then
    idle_since: str | None  # since then nothing trains
    unseen_since: str | None  # since then the folder of the jobs does not answer


def summary(events: Sequence[Event]) -> Summary:
    """Returns the waits of the latest job, as far as the events go back."""
    latest = since_last(events, JOB) or list(events)
    over = any(event.kind in OUTCOMES for event in latest)
    requests = [] if over else waits(latest)
    idle, unseen = idle_since(latest), unseen_since(latest)
    return Summary(
        waiting_since=requests[0].when if requests else None,
        requests=len(requests),
        idle_since=idle.isoformat() if idle else None,
        unseen_since=unseen.isoformat() if unseen else None,
    )


def story_lines(events: Sequence[Event], now: datetime) -> list[str]:
    """Returns the lines of the events, one for each row of failed requests, and of the waits."""
    lines = [f"{event.when}  {event.kind:8} {event.text}" for event in folded(events)]
    waiting = summary(events)
    if waiting.waiting_since:
        lines.append(
            f"the supervisor has waited for hosts for {age(waiting.waiting_since, now)}: "
            f"{waiting.requests} requests failed"
        )
    if waiting.unseen_since:
        lines.append(
            "the folder of the jobs or results has not answered for "
            f"{age(waiting.unseen_since, now)}: the supervisor cannot see the job; see whether its "
            "file system hangs on the master"
        )
    if waiting.idle_since:
        lines.append(f"nothing has trained for {age(waiting.idle_since, now)}")
    return lines


def age(since: str, now: datetime) -> str:
    """Formats the time since a moment.

    >>> from datetime import timezone
    >>> age("2026-01-01T00:00:00+00:00", datetime(2026, 1, 1, 7, 5, tzinfo=timezone.utc))
    '7 h 5 min'
    """
    minutes = max(timedelta(0), now - datetime.fromisoformat(since)) // timedelta(minutes=1)
    return f"{minutes // 60} h {minutes % 60} min"
