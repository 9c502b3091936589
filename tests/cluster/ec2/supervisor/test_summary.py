"""The waits of a supervisor, as `status` shows them from its event log."""

from datetime import datetime, timedelta, timezone

from atomo_cluster.ec2.supervisor.event_log import Event
from atomo_cluster.ec2.supervisor.summary import story_lines, summary

START = datetime(2026, 1, 1, 22, tzinfo=timezone.utc)


def event(minutes, kind, text=""):
    return Event((START + timedelta(minutes=minutes)).isoformat(), kind, text)


def test_hours_without_capacity_are_a_line_and_their_length():
    requests = [event(n, "waiting", f"no host; request {n}") for n in range(5, 425, 10)]
    events = [event(0, "job"), event(1, "started"), event(4, "lost", "gone: i-1"), *requests,
              event(425, "restart", "the job ended with 5")]  # fmt: skip
    lines = story_lines(events, START + timedelta(minutes=430))
    assert sum("no host" in line for line in lines) == 1
    assert "request 415" in lines[3]
    assert lines[-2] == "the supervisor has waited for hosts for 7 h 5 min: 42 requests failed"
    assert lines[-1] == "nothing has trained for 0 h 5 min"


def test_waits_end_with_new_hosts_and_with_the_job():
    events = [event(0, "job"), event(1, "started"), event(5, "waiting"), event(6, "launched")]
    assert summary(events).requests == 1  # they are not set up yet
    assert summary([*events, event(9, "ready")]).waiting_since is None
    over = [*events, event(9, "done")]
    assert summary(over).requests == 0
    assert summary(over).idle_since == over[-1].when
    assert summary([*over, event(20, "job"), event(21, "started")]).idle_since is None
    assert summary([]).idle_since is None
    assert story_lines([], START) == []
