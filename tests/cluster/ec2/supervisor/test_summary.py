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


def test_a_folder_that_does_not_answer_is_idle_time_until_it_answers():
    events = [event(0, "job"), event(1, "started"), event(9, "unseen", "no answer")]
    assert summary(events).unseen_since == summary(events).idle_since == events[-1].when
    line, idle = story_lines(events, START + timedelta(minutes=20))[-2:]
    assert line.startswith("the folder of the jobs or results has not answered for 0 h 11 min: ")
    assert idle == "nothing has trained for 0 h 11 min"
    seen = summary([*events, event(30, "seen")])
    assert (seen.unseen_since, seen.idle_since) == (None, None)
    lost = [*events[:2], event(5, "restart"), *events[2:], event(30, "seen")]
    assert summary(lost).idle_since == lost[2].when  # nothing has trained since then


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
