"""`max_usd` where AWS answers nothing for hours, or never says what a host costs."""

from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

import pytest
from cluster.ec2.faults.supervised import FakeJob, host_pool_of, now
from cluster.ec2.support.cloud import everything, refusal, write_cluster
from cluster.ec2.support.lab import start

from atomo_cluster.ec2.hosts.ssh import Answer
from atomo_cluster.ec2.money.ledger import LedgerEntry, read_entries, record_entries
from atomo_cluster.ec2.settings.cluster import Cluster
from atomo_cluster.ec2.supervisor.decision import Limits
from atomo_cluster.ec2.supervisor.event_log import EventLog
from atomo_cluster.ec2.supervisor.loop import Supervisor
from atomo_cluster.errors import CloudError, ConfigError, NotReady

pytestmark = pytest.mark.long

PRICES = {"m5.large": 0.096, "gp3": 0.08, "address": 0.005}
HOUR = 0.096 + 100 * 0.08 / 730 + 0.005
FUSES_H = 8.0  # that `start` gives
DENIED = refusal("UnauthorizedOperation")


class Night:
    """A supervisor over hosts of moto's, and a clock that goes on some minutes a look."""

    every = timedelta(minutes=4)  # less than the margin before `max_usd`

    def __init__(self, folder, max_usd):
        self.begun, self.looks = now(), 0
        self.pool = host_pool_of(folder, lambda *_: SimpleNamespace())
        self.story = EventLog(folder / "story.jsonl", self.now)
        rules = Limits(max_usd=max_usd, max_restarts=3, autostop=None)
        job = FakeJob()
        job.safe = False
        self.supervisor = Supervisor(rules, job, self.pool, job, self.story, lambda: "", self.now)

    def now(self):
        return self.begun + self.every * self.looks

    @property
    def hours(self):
        return (self.now() - self.begun).total_seconds() / 3600

    def look(self, times=1):
        """Looks some times, or until all hosts were told to end."""
        for _ in range(times):
            if not self.over:
                self.looks += 1
                self.supervisor.step()
        return self.over

    @property
    def over(self):
        return self.supervisor._over


@pytest.fixture
def night(folder, cloud):
    """Returns a night over a master and a worker."""
    cloud.prices = PRICES

    def begin(max_usd):
        write_cluster(folder / "cluster.yaml", state_dir=str(folder / "state"), max_usd=max_usd,
                      n_workers=1)  # fmt: skip
        for role in ("master", "worker"):
            start(cloud, role)
        return Night(folder, max_usd)

    return begin


@pytest.fixture
def burnt(monkeypatch):
    """Returns the hosts whose fuses were ordered to end them at once."""
    made = []

    def run(ssh, host, command, stdin=b"", timeout_s=None):
        made.extend([host.id] * command.endswith("bash -s -- 0"))
        return Answer(host, 0, "", "")

    monkeypatch.setattr("atomo_cluster.ec2.hosts.ssh.Ssh.run", run)
    return made


@pytest.fixture
def mute(cloud, monkeypatch):
    """Returns a function after whose call AWS refuses every request."""
    return lambda: monkeypatch.setattr(cloud, "answer", lambda *_: DENIED)


def test_fuses_burn_before_max_usd_while_aws_answers_nothing_at_all(night, mute, burnt):
    tonight = night(max_usd=0.3)
    assert not tonight.look()
    hosts = [one.id for one in tonight.pool.hosts]
    mute()
    assert tonight.look(times=24)
    assert burnt == hosts[::-1]  # the master last
    assert 0.27 < 2 * HOUR * tonight.hours <= 0.3
    assert "of max_usd $0.30 are spent" in tonight.story.events[-1].text


def test_a_supervisor_that_never_saw_the_hosts_does_not_take_them_for_ended(night, mute, burnt):
    tonight = night(max_usd=0.3)
    mute()
    assert not tonight.look(times=24)  # the fuses of the launch end them
    with pytest.raises(CloudError):
        tonight.pool.end(("worker", "master"))
    assert not burnt


def test_where_aws_never_says_what_hosts_cost_the_fuses_hold(night, cloud, burnt):
    tonight = night(max_usd=2 * HOUR * (FUSES_H + 0.1))
    tonight.every = timedelta(minutes=20)
    cloud.prices = None
    tonight.look()
    lost = tonight.pool.hosts[-1].id
    cloud.moto.client().terminate_instances(InstanceIds=[lost])
    assert tonight.look(times=24)
    assert "RunInstances" not in cloud.calls
    assert tonight.hours <= FUSES_H
    assert not everything(cloud)["instances"]
    assert "AWS does not say what new hosts would cost" in str(tonight.story.events)


def test_a_price_that_aws_did_not_tell_is_asked_for_at_the_next_look(night, cloud):
    tonight = night(max_usd=1.0)
    cloud.prices = None
    tonight.look()
    assert tonight.pool.bill(tonight.now()).usd is None
    cloud.prices = PRICES
    for _ in range(2):
        assert tonight.pool.bill(tonight.now()).usd == pytest.approx(2 * HOUR / 15, rel=0.05)
    assert cloud.calls.count("GetProducts") == 2 + 3  # and then no more for some minutes


def test_the_price_of_a_host_that_has_ended_is_filled_in_later(tmp_path):
    """A single failure when a host ends must not leave the bill unknown for ever."""
    begun, settings = now().isoformat(), Cluster(state_dir=str(tmp_path))
    ended = LedgerEntry("i-1", "ana", "m5.large", begun, begun, True, None)
    later = replace(ended, until=(now() + timedelta(hours=1)).isoformat(), usd_per_hour=0.1)
    for one in (ended, later, replace(later, usd_per_hour=0.2)):
        record_entries(settings, "ana", [one])
    assert list(read_entries(settings, "ana").values()) == [replace(ended, usd_per_hour=0.1)]


def test_a_host_whose_end_nobody_saw_counts_before_another_is_launched(night, cloud, monkeypatch):
    """AWS lists running hosts, and fails for those that have ended."""
    both = HOUR * (2 * (FUSES_H + 0.1) - 3)  # the master, and another worker three hours later
    tonight = night(max_usd=both + 1 * HOUR)
    tonight.look()
    cloud.moto.client().terminate_instances(InstanceIds=[tonight.pool.hosts[-1].id])
    tonight.pool.look(now())

    def fails(*_):
        raise CloudError("ec2.describe_instances: RequestLimitExceeded: no")

    monkeypatch.setattr("atomo_cluster.ec2.supervisor.accounts.instances", fails)
    with pytest.raises(NotReady, match="with new hosts the cluster may cost"):
        tonight.pool.launch(now() + timedelta(hours=3))
    assert len(everything(cloud)["instances"]) == 1


def test_a_full_disk_is_no_reason_to_end_hosts_later(night, cloud, monkeypatch):
    tonight = night(max_usd=0.3)
    tonight.look()

    def full(*_):
        raise ConfigError("hosts.json: No space left on device")

    monkeypatch.setattr("atomo_cluster.ec2.supervisor.accounts.record_entries", full)
    assert tonight.look(times=24)
    assert 0.27 < 2 * HOUR * tonight.hours <= 0.3
    assert not everything(cloud)["instances"]


def test_an_event_that_cannot_be_written_ends_no_supervisor(tmp_path, capsys):
    story = EventLog(tmp_path / "gone" / "story.jsonl", now)
    story.tell("over", "all hosts are ordered to end")
    assert [event.kind for event in story.events] == ["over"]
    assert "No such file" in capsys.readouterr().err
