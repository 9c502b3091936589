"""The page of `status --html`: hosts, costs over time, interruptions and jobs."""

from datetime import datetime, timedelta, timezone
from math import inf

import pytest
from support.run_folders import parse_page

from atomo_cluster.ec2.aws.inventory import Instance
from atomo_cluster.ec2.commands.clusters.status_page import ClusterStatus, cost_points, status_html
from atomo_cluster.ec2.money.ledger import LedgerEntry
from atomo_cluster.ec2.supervisor.event_log import Event

START = datetime(2026, 1, 1, 22, tzinfo=timezone.utc)
EVIL = "<script>alert(1)</script>"


def later(hours):
    return START + timedelta(hours=hours)


def host(name, state="running", hours=8.0):
    return Instance(name, "worker", "m5.large", state, "us-east-1a", "1.2.3.4", "10.0.0.1", START,
                    True, "test", "ana", "l", hours, "s")  # fmt: skip


def life(name, begin, end, usd, ended=True):
    return LedgerEntry(name, "ana", "m5.large", later(begin).isoformat(), later(end).isoformat(),
                       ended, usd)  # fmt: skip


def status(hosts=(), lives=(), story=(), unsaid=(), name="test"):
    return ClusterStatus(name, "ana", "us-east-1", hosts, 3, lives, story, unsaid, later(4))


def test_the_page_has_hosts_costs_interruptions_and_jobs():
    story = [
        Event("22:00", "job", "LeNet"),
        Event("22:01", "started", "step 0"),
        Event("22:30", "lost", "gone: i-1"),
        *(Event(f"22:3{n}", "waiting", f"no host; request {n}") for n in range(5)),
        Event("22:50", "done", "finished"),
    ]
    lives = [life("i-1", 0, 2, 0.5), life("i-2", 1, 8, 0.25, ended=False)]
    page = parse_page(status_html(status([host("i-2"), host("i-3", "pending", inf)], lives, story)))
    assert "1 of 3 hosts run." in page.text
    assert "and $1.75 so far" in page.text.replace("USD ", "$")
    assert "Costs rise to 1.75 USD in 4.0 hours." in page.text
    assert "i-2 m5.large spot running us-east-1a 2026-01-01 22:00 2026-01-02 06:00" in page.text
    assert "unknown" in page.text
    interruptions = page.text.partition("Interruptions")[2]
    assert "gone: i-1" in interruptions
    assert interruptions.count("no host") == 1  # the last request of a row
    assert "22:50 done finished" in page.text.partition("Jobs")[2]


def test_costs_rise_while_hosts_live_and_stay_after_their_end():
    points = [*cost_points([life("i-1", 0, 2, 0.5), life("i-2", 1, 2, None)], later(4))]
    assert points[0] == (0.0, 0.0)
    assert points[-1] == pytest.approx((4.0, 1.0))
    usd = [usd for _, usd in points]
    assert usd == sorted(usd)
    assert usd[60] == pytest.approx(1.0)


def test_a_cluster_without_hosts_has_a_page():
    text = parse_page(status_html(status(unsaid=["no permission"]))).text
    assert "The cluster has no hosts." in text
    assert "has no prices of hosts yet" in text
    assert "No host was lost." in text
    assert "AWS does not say all: no permission" in text


def test_markup_of_names_and_events_is_escaped():
    story = [Event(EVIL, "lost", EVIL), Event(EVIL, "job", EVIL)]
    html = status_html(status([host(EVIL)], [], story, [EVIL], EVIL))
    assert EVIL in parse_page(html).text
    assert "<script" not in html
