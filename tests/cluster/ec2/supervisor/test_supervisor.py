"""The supervisor over a simulated night: hosts, money and clock are simulated."""

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone

import pytest

from atomo_cluster.ec2.aws.inventory import Instance
from atomo_cluster.ec2.money.costs import Bill, bill
from atomo_cluster.ec2.money.ledger import LedgerEntry
from atomo_cluster.ec2.supervisor.backoff import LONGEST, SHORTEST, Backoff
from atomo_cluster.ec2.supervisor.decision import Action, Limits, Observation, decide
from atomo_cluster.ec2.supervisor.event_log import EventLog
from atomo_cluster.ec2.supervisor.loop import Supervisor
from atomo_cluster.errors import CloudError, NotReady, RemoteError

START = datetime(2026, 1, 1, 22, tzinfo=timezone.utc)
FUSE = START + timedelta(hours=8)
RULES = Limits(max_usd=10.0, max_restarts=3, autostop=timedelta(minutes=30))
CALM = Observation(
    now=START, running=True, unseen=False, code=None, withdrawn=False, lost=(), going=(), ready=3,
    needed=2, joining=(), missing=0, preparing=False, ask_at=None, refusal="", affordable=True,
    start_failed=False, drop_failed=False, outcome="", idle_since=None, restarts=0, safe=False,
    released=False, usd=1.0, usd_per_hour=1.2, fuse=FUSE,
)  # fmt: skip
OVER = {"running": False, "outcome": "done", "idle_since": START}
LATE = {"now": START + timedelta(minutes=30)}
LOSS = {"lost": ("i-1",), "ready": 2, "missing": 1}
ALONE = {"running": False, "ready": 1, "missing": 2, "idle_since": START}  # the job needs two
BLIND = {"running": False, "unseen": True, "idle_since": START}
SOON = {"ask_at": START + timedelta(hours=1)}
BROKE = {"affordable": False, "refusal": "the cluster may cost $11"}


@pytest.mark.parametrize(
    ("seen", "act"),
    [
        ({}, Action.WAIT),
        ({"running": False}, Action.START),
        ({"running": False, "code": 0}, Action.FINISH),
        ({"running": False, "code": 0} | LOSS, Action.FINISH),
        ({"running": False, "code": 6}, Action.FAIL),
        ({"running": False, "code": 130}, Action.STOPPED),
        ({"running": False, "code": 130} | LOSS, Action.RESTART),  # a spot notice
        ({"running": False, "code": 130, "withdrawn": True} | LOSS, Action.STOPPED),
        ({"running": False, "code": 5}, Action.RESTART),
        ({"running": False, "code": 5, "restarts": 3}, Action.FAIL),
        (LOSS, Action.LAUNCH),  # and the job goes on meanwhile
        (LOSS | {"restarts": 3}, Action.LAUNCH),
        (LOSS | SOON, Action.WAIT),
        (LOSS | {"preparing": True}, Action.WAIT),
        (LOSS | {"now": FUSE - timedelta(minutes=11)}, Action.WAIT),  # no new host is worth it
        (LOSS | BROKE | SOON, Action.WAIT),
        (LOSS | {"going": ("i-1",)}, Action.DROP),
        (LOSS | {"going": ("i-1",), "running": False}, Action.START),  # AWS may refuse for hours
        (LOSS | {"going": ("i-1",), "joining": ("i-7",)}, Action.DROP),
        (LOSS | {"going": ("i-1",), "joining": ("i-7",), "drop_failed": True}, Action.JOIN),
        (LOSS | {"going": ("i-1",), "drop_failed": True}, Action.DROP),
        (LOSS | {"running": False}, Action.START),  # on those that are left, before AWS is asked
        ({"joining": ("i-7",)}, Action.JOIN),
        ({"joining": ("i-7",), "running": False}, Action.START),
        (ALONE, Action.LAUNCH),
        (ALONE | SOON, Action.WAIT),
        (ALONE | BROKE, Action.FAIL),
        (ALONE | {"now": FUSE - timedelta(minutes=11)}, Action.FAIL),
        (ALONE | LATE, Action.FAIL),  # nothing has trained for `autostop` minutes
        (ALONE | LATE | {"missing": 0}, Action.FAIL),
        ({"running": False, "start_failed": True, "idle_since": START}, Action.START),
        ({"running": False, "start_failed": True, "idle_since": START} | LATE, Action.FAIL),
        (BLIND, Action.WAIT),  # it may run: no second one is started
        (BLIND | {"idle_since": None}, Action.WAIT),
        (BLIND | LOSS, Action.WAIT),  # nor are hosts launched that nobody sees train
        (BLIND | LOSS | {"going": ("i-1",)}, Action.DROP),
        (BLIND | LATE, Action.FAIL),
        (BLIND | {"usd": 9.9}, Action.END),
        (BLIND | OVER | LATE, Action.RELEASE),
        (OVER, Action.WAIT),
        (OVER | {"safe": True}, Action.END),
        (OVER | LATE, Action.RELEASE),  # never the only copy of results
        (OVER | LATE | {"released": True}, Action.WAIT),
        (OVER | {"outcome": "failed", "safe": True}, Action.WAIT),
        (OVER | LATE | {"outcome": "stopped", "safe": True}, Action.END),
        (OVER | LOSS, Action.WAIT),
        ({"usd": 9.89}, Action.WAIT),
        ({"usd": 9.9}, Action.END),  # five minutes are left to write a checkpoint
        ({"usd": 9.9} | LOSS, Action.END),
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


def test_requests_back_off_by_a_given_clock_and_seed_up_to_a_bound():
    backoff, now = Backoff("job 1"), START
    pauses = []
    for _ in range(40):
        pauses.append(backoff.fail(now) - now)
        now = backoff.due
    assert SHORTEST / 2 <= pauses[0] <= SHORTEST
    assert all(LONGEST / 2 <= pause <= LONGEST for pause in pauses[5:])
    assert len(set(pauses)) == 40
    assert Backoff("job 1").fail(START) == START + pauses[0] != Backoff("job 2").fail(START)
    assert Backoff("job 1", 10_000).fail(START) - START <= LONGEST
    backoff.succeed()
    assert backoff.due is None
    assert backoff.fail(now) - now <= SHORTEST


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
    fails: dict[int, Exception] = field(default_factory=dict)  # by step: the error of `launch`
    breaks: dict[int, Exception] = field(default_factory=dict)  # by step: that of `prepared`
    silent: tuple[int, ...] = ()  # steps at which AWS does not answer
    usd_per_hour: float = 0.3
    safe: bool = False
    every: timedelta = timedelta(minutes=10)  # that a step takes
    survives: bool = True  # True if the job outlives the loss of a host
    step: int = -1
    running: bool = False
    code: int | None = None
    withdrawn: bool = False
    needed: int = 2
    log: list[str] = field(default_factory=list)
    notices: bool = False  # True if EC2 tells the job of a loss
    all: list[Instance] = field(default_factory=lambda: [instance(n) for n in range(3)])
    hosts: tuple[str, ...] = ()  # of the job
    going: tuple[str, ...] = ()
    preparing: bool = False
    launched: int = 0

    def now(self):
        return START + self.every * self.step

    def sync(self):
        self.step += 1
        if self.running and self.step in self.ends:
            self.running, self.code = False, self.ends[self.step]

    def finish(self):
        self.log.append("store")

    def bill(self, now):
        hours = (now - START).total_seconds() / 3600
        return Bill(self.usd_per_hour * hours, self.usd_per_hour)

    def start(self, hosts, network):
        self.hosts = tuple(host.id for host in hosts)
        self.log.append(f"start {len(hosts)}")
        self.running, self.code = True, None

    def stop(self, notified=False):
        if self.running:
            self.log.append("wait" if notified else "stop")
            self.running, self.code = False, 130

    def forget(self):
        self.code = None


@dataclass
class SimulatedHosts:
    """The hosts of a simulated cluster."""

    cluster: SimulatedCluster

    @property
    def hosts(self):
        return self.cluster.all

    @property
    def going(self):
        return self.cluster.going

    @property
    def noticed(self):
        return self.cluster.going if self.cluster.notices else ()

    @property
    def ready(self):
        fresh = {f"i-{10 + self.cluster.launched}"} if self.preparing else set()
        return [host for host in self.hosts if host.id not in {*self.going, *fresh}]

    @property
    def missing(self):
        return 3 - len(self.hosts) + len(self.going)

    @property
    def preparing(self):
        return self.cluster.preparing

    def master(self):
        return self.hosts[0]

    def look(self, now):
        cluster = self.cluster
        if cluster.step in cluster.silent:
            raise CloudError("ec2.describe_instances: RequestLimitExceeded: no")
        if (id := cluster.loses.pop(cluster.step, None)) is not None:
            cluster.going = (id,)
            if cluster.running and id in cluster.hosts and not cluster.survives:
                cluster.running, cluster.code = False, 5

    def bill(self, now):
        return self.cluster.bill(now)

    def drop(self, ids):
        self.cluster.log.append(f"drop {','.join(ids)}")
        self.cluster.all = [host for host in self.hosts if host.id not in ids]
        self.cluster.going = ()

    def launch(self, now):
        self.cluster.log.append("launch")
        if error := self.cluster.fails.get(self.cluster.step):
            raise error
        self.cluster.launched += 1
        self.cluster.all = [*self.hosts, instance(10 + self.cluster.launched)]
        self.cluster.preparing = True
        return [self.hosts[-1].id]

    def prepared(self):
        if not self.preparing:
            return []
        self.cluster.preparing = False
        if error := self.cluster.breaks.get(self.cluster.step):
            self.cluster.going = (self.hosts[-1].id,)
            raise error
        return self.hosts

    def end(self, roles):
        self.cluster.log.append(f"end {','.join(roles)}")
        return list(roles)


def night(tmp_path, cluster, rules=RULES, steps=60):
    """Runs the supervisor until it ends the hosts; returns the kinds of its events."""
    story = EventLog(tmp_path / "story.jsonl", cluster.now)
    hosts = SimulatedHosts(cluster)
    supervisor = Supervisor(rules, cluster, hosts, cluster, story, lambda: "", cluster.now)
    for _ in range(steps):
        supervisor.step()
        if "end worker,master" in cluster.log:
            break
    return [event.kind for event in story.events]


REPLACED = ["lost", "launched", "ready", "joined", "started"]


def test_a_night_with_interruptions_ends_with_the_job(tmp_path):
    cluster = SimulatedCluster(loses={3: "i-1", 9: "i-2"}, ends={18: 0}, safe=True)
    assert night(tmp_path, cluster) == ["started", *REPLACED, *REPLACED, "done", "over"]
    # The job stops when the new host is ready, and not before.
    assert cluster.log == ["start 3", "drop i-1", "launch", "stop", "start 3", "drop i-2", "launch",
                           "stop", "start 3", "store", "end worker,master"]  # fmt: skip


def test_a_job_that_ended_with_a_host_goes_on_with_those_that_are_left(tmp_path):
    cluster = SimulatedCluster(loses={3: "i-1"}, ends={12: 0}, safe=True, survives=False)
    night(tmp_path, cluster)
    assert cluster.log[:5] == ["start 3", "drop i-1", "start 2", "launch", "stop"]


def test_a_job_that_a_notice_has_told_to_leave_is_not_told_twice(tmp_path):
    cluster = SimulatedCluster(loses={3: "i-1"}, ends={12: 0}, notices=True)
    night(tmp_path, cluster, steps=12)
    assert cluster.log[:6] == ["start 3", "wait", "drop i-1", "start 2", "launch", "stop"]


def test_a_notice_does_not_end_the_start_that_follows_it(tmp_path):
    cluster = SimulatedCluster(loses={3: "i-1"}, ends={3: 130, 12: 0}, notices=True)
    night(tmp_path, cluster, steps=12)
    assert cluster.log[:5] == ["start 3", "start 2", "drop i-1", "launch", "stop"]


def test_seven_hours_without_capacity_cost_no_training(tmp_path):
    every = timedelta(minutes=1)
    shortage = CloudError("no m5.large in us-east-1a", "InsufficientInstanceCapacity")
    fails = dict.fromkeys(range(420), shortage)
    cluster = SimulatedCluster(loses={5: "i-1"}, fails=fails, every=every, survives=False)
    kinds = night(tmp_path, cluster, steps=450)
    assert cluster.log.count("stop") == 1  # for the new host
    assert cluster.log[:3] == ["start 3", "drop i-1", "start 2"]
    assert 40 < kinds.count("waiting") < 110  # and not one request a step
    assert kinds[-4:] == REPLACED[1:]
    text = EventLog(tmp_path / "story.jsonl", cluster.now).waits
    assert text == []  # since a host came


def test_a_job_that_too_few_are_left_for_waits_no_longer_than_autostop(tmp_path):
    shortage = CloudError("no m5.large in us-east-1a", "InsufficientInstanceCapacity")
    cluster = SimulatedCluster(
        loses={5: "i-1"}, fails=dict.fromkeys(range(420), shortage), needed=3, survives=False,
        every=timedelta(minutes=1), safe=True,
    )  # fmt: skip
    kinds = night(tmp_path, cluster, steps=420)
    assert kinds[-2:] == ["failed", "over"]
    assert cluster.now() <= START + timedelta(minutes=5 + 30 + 2)
    story = EventLog(tmp_path / "story.jsonl", cluster.now)
    (failure,) = [event.text for event in story.events if event.kind == "failed"]
    assert "nothing has trained for 30 minutes: 2 hosts are ready, and the job needs 3" in failure
    assert "AWS has no capacity (InsufficientInstanceCapacity)" in failure


def test_what_aws_and_hosts_refuse_is_tried_again(tmp_path):
    shortage, broken = CloudError("no capacity"), RemoteError("install failed")
    cluster = SimulatedCluster(
        loses={2: "i-1"}, fails={3: shortage, 4: shortage}, breaks={6: broken}, ends={14: 0}
    )
    cluster.silent, cluster.safe = (11,), True
    kinds = night(tmp_path, cluster)
    assert kinds.count("waiting") == 3
    assert kinds.count("note") == 1  # of the silence
    assert kinds.count("joined") == 1
    assert cluster.log.count("launch") == 4
    assert "drop i-11" in cluster.log  # its setup failed, and it costs


def test_too_many_losses_end_the_job_and_then_the_workers(tmp_path):
    cluster = SimulatedCluster(ends=dict.fromkeys(range(2, 40, 2), 5))
    rules = replace(RULES, max_restarts=2)
    assert night(tmp_path, cluster, rules, 30)[-2:] == ["failed", "over"]
    assert cluster.log[-1] == "end worker"  # the master keeps the checkpoints


def test_no_new_hosts_where_money_is_short(tmp_path):
    short = NotReady("the cluster may cost $11")
    fails = dict.fromkeys(range(60), short)
    cluster = SimulatedCluster(loses={2: "i-1"}, fails=fails)
    assert set(night(tmp_path, cluster, RULES, 10)) == {"started", "lost", "waiting"}
    assert "stop" not in cluster.log  # it goes on with those that are left
    cluster = SimulatedCluster(loses={2: "i-1"}, fails=fails, needed=3, survives=False)
    (tmp_path / "other").mkdir()
    kinds = night(tmp_path / "other", cluster, RULES, 12)
    assert kinds == ["started", "lost", "restart", "waiting", "failed", "over"]


def test_money_ends_a_night_whatever_aws_says(tmp_path):
    every = timedelta(minutes=1)
    cluster = SimulatedCluster(usd_per_hour=3.0, silent=tuple(range(5, 300)), every=every)
    assert night(tmp_path, cluster, steps=300)[-1] == "over"
    assert cluster.now() < START + timedelta(hours=10 / 3.0)  # max_usd is 10
    assert cluster.log == ["start 3", "stop", "store", "end worker,master"]


def test_a_supervisor_that_is_started_again_goes_on(tmp_path):
    cluster = SimulatedCluster(loses={2: "i-1"}, ends={8: 0}, survives=False)
    night(tmp_path, cluster, steps=10)
    torn = tmp_path / "story.jsonl"
    torn.write_text(torn.read_text() + '{"when": "2026')
    story = EventLog(torn, cluster.now)
    assert (story.outcome, story.restarts) == ("done", 1)
    cluster.step, cluster.running, cluster.code = 20, False, None
    hosts = SimulatedHosts(cluster)
    supervisor = Supervisor(RULES, cluster, hosts, cluster, story, lambda: "", cluster.now)
    supervisor.step()
    assert cluster.log[-1] == "end worker"  # the job is not started again
    story.tell("job", "job 2")
    assert (story.outcome, story.restarts) == ("", 0)
