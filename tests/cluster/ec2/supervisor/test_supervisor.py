"""The supervisor over a simulated night: hosts, money and clock are simulated."""

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone

import pytest

from atomo_cluster.ec2.aws.inventory import Instance
from atomo_cluster.ec2.hosts.ssh import Host
from atomo_cluster.ec2.money.costs import Bill, bill
from atomo_cluster.ec2.money.ledger import LedgerEntry
from atomo_cluster.ec2.supervisor.decision import Action, Limits, Observation, decide
from atomo_cluster.ec2.supervisor.event_log import EventLog
from atomo_cluster.ec2.supervisor.loop import Supervisor
from atomo_cluster.errors import CloudError, NotReady, RemoteError

START = datetime(2026, 1, 1, 22, tzinfo=timezone.utc)
FUSE = START + timedelta(hours=8)
RULES = Limits(max_usd=10.0, max_restarts=3, autostop=timedelta(minutes=30))
CALM = Observation(
    now=START, running=True, code=None, lost=(), outcome="", idle_since=None, restarts=0,
    safe=False, released=False, usd=1.0, usd_per_hour=1.2, fuse=FUSE,
)  # fmt: skip
OVER = {"running": False, "outcome": "done", "idle_since": START}
LATE = {"now": START + timedelta(minutes=30)}


@pytest.mark.parametrize(
    ("seen", "act"),
    [
        ({}, Action.WAIT),
        ({"running": False}, Action.START),
        ({"running": False, "code": 0}, Action.FINISH),
        ({"running": False, "code": 0, "lost": ("i-1",)}, Action.FINISH),
        ({"running": False, "code": 6}, Action.FAIL),
        ({"running": False, "code": 130}, Action.STOPPED),
        ({"running": False, "code": 130, "lost": ("i-1",)}, Action.REPLACE),  # a spot notice
        ({"running": False, "code": 5}, Action.RESTART),
        ({"running": False, "code": 5, "restarts": 3}, Action.FAIL),
        ({"lost": ("i-1",)}, Action.REPLACE),
        ({"lost": ("i-1",), "restarts": 3}, Action.FAIL),
        (OVER, Action.WAIT),
        (OVER | {"safe": True}, Action.END),
        (OVER | LATE, Action.RELEASE),  # never the only copy of results
        (OVER | LATE | {"released": True}, Action.WAIT),
        (OVER | {"outcome": "failed", "safe": True}, Action.WAIT),
        (OVER | LATE | {"outcome": "stopped", "safe": True}, Action.END),
        (OVER | {"lost": ("2 of the workers",)}, Action.WAIT),
        ({"usd": 9.89}, Action.WAIT),
        ({"usd": 9.9}, Action.END),  # five minutes are left to write a checkpoint
        ({"usd": 9.9, "lost": ("i-1",)}, Action.END),
        ({"usd": None}, Action.WAIT),
        ({"now": FUSE - timedelta(minutes=5)}, Action.END),
    ],
)
def test_what_is_done_next(seen, act):
    assert decide(replace(CALM, **seen), RULES).act == act


def test_without_limits_nothing_but_the_fuse_ends_hosts():
    rules = Limits(max_usd=None, max_restarts=3, autostop=None)
    late = FUSE - timedelta(minutes=6)
    seen = replace(CALM, **OVER | {"now": late, "usd": 1e6})
    assert decide(seen, rules).act == Action.WAIT


def test_hosts_that_have_ended_are_in_the_bill_and_what_is_unknown_stays_so():
    entry = LedgerEntry("i-1", "ana", "m5.large", START.isoformat(), FUSE.isoformat(), False, 0.5)
    ended = replace(entry, until=(START + timedelta(hours=1)).isoformat(), ended=True)
    now = START + timedelta(hours=2)
    assert bill([entry, ended], now) == Bill(1.5, 0.5)
    assert bill([entry], FUSE + timedelta(hours=9)) == Bill(4.0, 0.0)  # the fuse has held
    assert bill([entry, replace(ended, usd_per_hour=None)], now).usd is None


def instance(number):
    """Returns a host: the first is the master."""
    role = "worker" if number else "master"
    return Instance(f"i-{number}", role, "m5.large", "running", "us-east-1a", None,
                    f"10.0.0.{number}", START, bool(number), "c", "ana", "", 8.0, "s")  # fmt: skip


@dataclass
class SimulatedCluster:
    """A job, hosts and a store in one, and a clock that moves ten minutes a step."""

    loses: dict[int, str] = field(default_factory=dict)  # by step: the host that goes
    ends: dict[int, int] = field(default_factory=dict)  # by step: the code of the job
    fails: dict[int, Exception] = field(default_factory=dict)  # by step: the error of `replace`
    silent: tuple[int, ...] = ()  # steps at which AWS does not answer
    usd_per_hour: float = 0.3
    safe: bool = False
    every: timedelta = timedelta(minutes=10)  # that a step takes
    step: int = -1
    running: bool = False
    code: int | None = None
    lost: tuple[str, ...] = ()
    log: list[str] = field(default_factory=list)
    noticed: bool = False
    hosts: list[Instance] = field(default_factory=lambda: [instance(n) for n in range(3)])

    def now(self):
        return START + self.every * self.step

    def sync(self):
        self.step += 1
        if self.running and self.step in self.ends:
            self.running, self.code = False, self.ends[self.step]

    def finish(self):
        self.log.append("store")

    def master(self):
        return self.hosts[0]

    def look(self, now):
        if self.step in self.silent:
            raise CloudError("ec2.describe_instances: RequestLimitExceeded: no")
        if self.step in self.loses:
            self.lost = (self.loses[self.step],)
        return self.lost

    def bill(self, now):
        hours = (now - START).total_seconds() / 3600
        return Bill(self.usd_per_hour * hours, self.usd_per_hour)

    def replace(self, lost, now):
        self.log.append(f"replace {','.join(lost)}")
        if self.step in self.fails:
            raise self.fails[self.step]
        self.lost = ()
        return [Host(f"i-{n}", "a", "worker", "a", "a") for n in (0, 1, 7)]

    def end(self, roles):
        self.log.append(f"end {','.join(roles)}")
        return list(roles)

    def start(self, hosts, network):
        self.log.append("start")
        self.running, self.code = True, None

    def stop(self, notified=False):
        if self.running:
            self.log.append("wait" if notified else "stop")
            self.running, self.code = False, 130

    def forget(self):
        self.code = None


def night(tmp_path, cluster, rules=RULES, steps=60):
    """Runs the supervisor until it ends the hosts; returns the kinds of its events."""
    story = EventLog(tmp_path / "story.jsonl", cluster.now)
    supervisor = Supervisor(rules, cluster, cluster, cluster, story, lambda: "", cluster.now)
    for _ in range(steps):
        supervisor.step()
        if "end worker,master" in cluster.log:
            break
    return [event.kind for event in story.events]


def test_a_night_with_interruptions_ends_with_the_job(tmp_path):
    cluster = SimulatedCluster(loses={3: "i-1", 9: "i-2"}, ends={15: 0}, safe=True)
    kinds = night(tmp_path, cluster)
    assert kinds == ["started", "lost", "restart", "started", "lost", "restart", "started", "done",
                     "over"]  # fmt: skip
    assert cluster.log == ["start", "stop", "replace i-1", "start", "stop", "replace i-2", "start",
                          "store", "end worker,master"]  # fmt: skip


def test_a_job_that_a_notice_has_told_to_leave_is_not_told_twice(tmp_path):
    cluster = SimulatedCluster(loses={3: "i-1"}, ends={9: 0}, noticed=True)
    night(tmp_path, cluster, steps=12)
    assert cluster.log[:4] == ["start", "wait", "replace i-1", "start"]


def test_what_aws_and_hosts_refuse_is_tried_again_and_told_once(tmp_path):
    shortage, broken = CloudError("no capacity"), RemoteError("install failed")
    cluster = SimulatedCluster(
        loses={2: "i-1"}, fails={2: shortage, 3: shortage, 4: broken}, ends={9: 0}
    )
    cluster.silent, cluster.safe = (7,), True
    kinds = night(tmp_path, cluster)
    assert kinds.count("lost") == kinds.count("restart") == 1
    assert kinds.count("note") == 3  # of two kinds, and of the silence
    assert cluster.log.count("replace i-1") == 4


def test_too_many_losses_end_the_job_and_then_the_workers(tmp_path):
    cluster = SimulatedCluster(loses={n: f"i-{n}" for n in range(2, 12, 2)})
    rules = replace(RULES, max_restarts=2)
    assert night(tmp_path, cluster, rules, 30)[-2:] == ["failed", "over"]
    assert cluster.log[-2:] == ["stop", "end worker"]  # the master keeps the checkpoints


def test_no_new_hosts_where_money_is_short(tmp_path):
    cluster = SimulatedCluster(loses={2: "i-1"}, fails={2: NotReady("the cluster may cost $11")})
    assert night(tmp_path, cluster, RULES, 10) == ["started", "lost", "failed", "over"]


def test_money_ends_a_night_whatever_aws_says(tmp_path):
    every = timedelta(minutes=1)
    cluster = SimulatedCluster(usd_per_hour=3.0, silent=tuple(range(5, 300)), every=every)
    assert night(tmp_path, cluster, steps=300)[-1] == "over"
    assert cluster.now() < START + timedelta(hours=10 / 3.0)  # max_usd is 10
    assert cluster.log == ["start", "stop", "store", "end worker,master"]


def test_a_supervisor_that_is_started_again_goes_on(tmp_path):
    cluster = SimulatedCluster(loses={2: "i-1"}, ends={6: 0})
    night(tmp_path, cluster, steps=8)
    torn = tmp_path / "story.jsonl"
    torn.write_text(torn.read_text() + '{"when": "2026')
    story = EventLog(torn, cluster.now)
    assert (story.outcome, story.restarts) == ("done", 1)
    cluster.step, cluster.running, cluster.code = 20, False, None
    supervisor = Supervisor(RULES, cluster, cluster, cluster, story, lambda: "", cluster.now)
    supervisor.step()
    assert cluster.log[-1] == "end worker"  # the job is not started again
    story.tell("job", "job 2")
    assert (story.outcome, story.restarts) == ("", 0)
