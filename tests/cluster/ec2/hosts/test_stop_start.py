"""A cluster that is stopped and started: its cost, its fuses, and faults on the way."""

from datetime import datetime, timedelta, timezone

import pytest
from cluster.ec2.support.cloud import everything, refusal
from cluster.ec2.support.lab import start

from atomo_cluster.ec2.hosts.ssh import Answer

pytestmark = pytest.mark.long

PRICES = {"m5.large": 0.096, "gp3": 0.08, "address": 0.005}
DISK = 100 * 0.08 / 730
HOST = 0.096 + DISK + 0.005
LEFT_S = 5 * 3600
JOB = "3\trunning\t\t10\t11\t\truns/job-3\t--epochs 2\n"


class Hosts:
    """Hosts that record the commands sent over ssh, and answer them."""

    def __init__(self):
        self.told, self.jobs, self.lost = [], "", set()

    def run(self, ssh, host, command, stdin=b"", timeout_s=None):
        if "job list" in command:
            return Answer(host, 0, self.jobs, "")
        self.told.append((host.id, command.rpartition(" ")[2]))
        if host.id in self.lost:
            return Answer(host, 255, "", "connection refused")
        return Answer(host, 0, f"{LEFT_S}\n", "")


@pytest.fixture
def hosts(monkeypatch):
    made = Hosts()
    run = made.run
    monkeypatch.setattr("atomo_cluster.ec2.hosts.ssh.Ssh.run", lambda *words: run(*words))
    monkeypatch.setattr("atomo_cluster.ec2.hosts.host_keys.HostKeys.pin", lambda *_: "key")
    return made


def states(ec2):
    return [host["state"] for host in ec2("status", "--json").record["hosts"]]


def up(cloud):
    """Returns a cluster of three, without the checks of `launch`, which take longer."""
    return [start(cloud, role) for role in ("master", "worker", "worker")]


def later(monkeypatch, hours, *modules):
    class Later(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(timezone.utc) + timedelta(hours=hours)

    for module in modules:
        monkeypatch.setattr(f"atomo_cluster.ec2.{module}.datetime", Later)


@pytest.mark.slow
def test_a_cluster_sleeps_for_its_disks_and_wakes(ec2, cloud, hosts, monkeypatch):
    cloud.prices = PRICES
    ids = up(cloud)
    assert ec2("stop_hosts", answer="n\n").code == 13
    assert ec2("stop_hosts", "--dry-run").code == 0
    done = ec2("stop_hosts", "--yes")
    assert done.code == 0, done.err
    assert f"asleep: the disks cost ${3 * DISK:.4f} per hour, ${3 * 8:.2f} a month" in done.out
    assert states(ec2) == ["stopped"] * 3
    assert "keeps 5.0 h" in ec2("status").out
    later(monkeypatch, 10, "money.costs")
    asleep = ec2("cost", "--json").record
    assert asleep["usd_per_hour"] == pytest.approx(3 * DISK)
    assert asleep["usd_so_far"] == pytest.approx(30 * DISK, rel=1e-2)
    assert asleep["usd_until_fuse"] == pytest.approx(30 * DISK + 15 * HOST, rel=1e-2)
    assert "`start_hosts`" in ec2("train").err
    assert ec2("start_hosts", "--yes", "--max-usd", "1.9").code == 12
    later(monkeypatch, 10, "money.costs", "commands.clusters.start_hosts")
    woken = ec2("start_hosts", "--yes", "--json")
    assert woken.code == 0, woken.err
    assert {one["id"] for one in woken.record} == set(ids)
    for id in ids:  # as if ten hours had passed; moto does it at once
        cloud.starts[id] = (datetime.now(timezone.utc) + timedelta(hours=10)).isoformat()
    later(monkeypatch, 12, "money.costs")
    awake = ec2("cost", "--json").record
    assert awake["usd_so_far"] == pytest.approx(30 * DISK + 6 * HOST, rel=1e-2)
    assert states(ec2) == ["running"] * 3
    left = [one["max_hours"] for one in ec2("status", "--json").record["hosts"]]
    assert left == pytest.approx([5.0] * 3)
    assert ec2("start_hosts", "--yes").code == 0  # again: nothing happens
    assert ec2("shutdown", "--yes").code == 0
    assert not everything(cloud)["volumes"]


@pytest.mark.slow
def test_spot_hosts_are_not_stopped_but_may_be_ended(ec2, cloud, hosts):
    start(cloud, "master"), start(cloud, "worker", spot=True)
    refused = ec2("stop_hosts", "--yes")
    assert refused.code == 2
    assert "EC2 does not stop spot instances that were bought for one time" in refused.err
    assert states(ec2) == ["running"] * 2
    assert ec2("stop_hosts", "--yes", "--end-spot").code == 0
    assert states(ec2) == ["stopped"]
    woken = ec2("start_hosts", "--yes")
    assert "`launch` for the 2 hosts that are missing" in woken.out


@pytest.mark.slow
def test_no_host_is_stopped_unless_all_can_be(ec2, cloud, hosts):
    ids = up(cloud)
    hosts.jobs = JOB
    busy = ec2("stop_hosts", "--yes")
    assert busy.code == 12
    assert "`stop 3` ends it with a checkpoint" in busy.err
    assert not hosts.told
    hosts.jobs, hosts.lost = "", {ids[1]}
    away = ec2("stop_hosts", "--yes")
    assert away.code == 11
    assert ids[1] in away.err
    assert {id for id, verb in hosts.told if verb == "go_on"} == {ids[0], ids[2]}
    assert states(ec2) == ["running"] * 3


def lost(words, forward):
    """EC2 carries out the call, and the answer is lost."""
    forward()
    return refusal("IncompleteSignature")


@pytest.mark.slow
def test_a_refusal_changes_nothing_and_a_lost_answer_is_none(ec2, cloud, hosts):
    ids = set(up(cloud))
    moves = (("StopInstances", "stop_hosts", "running", "stopped"),
             ("StartInstances", "start_hosts", "stopped", "running"))  # fmt: skip
    for call, command, before, after in moves:
        hosts.told.clear()
        cloud.on(call, refusal("InsufficientInstanceCapacity"))
        assert ec2(command, "--yes").code == 10
        assert states(ec2) == [before] * 3
        told_on = {id for id, verb in hosts.told if verb == "go_on"}
        assert told_on == (ids if command == "stop_hosts" else set())
        hosts.told.clear()
        cloud.on(call, lost)
        assert ec2(command, "--yes").code == 0
        assert states(ec2) == [after] * 3
        assert not [one for one in hosts.told if one[1] == "go_on"]


def test_hosts_are_named_that_sleep_or_woke_though_aws_says_no_more(ec2, cloud, hosts):
    cloud.prices = PRICES
    id = start(cloud, "master")
    cloud.on("DescribeVolumes", refusal("UnauthorizedOperation"))
    asleep = ec2("stop_hosts", "--yes")
    assert asleep.code == 0, asleep.err
    assert f"stopped: {id}\n" in asleep.out
    assert "asleep: the disks cost unknown per hour" in asleep.out

    def at_the_end(words, forward):
        """Refuses the next look but one: the first is the wait for the start."""
        cloud.on("DescribeInstances", lambda *_: None)
        cloud.on("DescribeInstances", refusal("UnauthorizedOperation"))

    cloud.on("StartInstances", at_the_end)
    woken = ec2("start_hosts", "--yes")
    assert woken.code == 10
    assert f"started: {id}\n" in woken.out


@pytest.mark.slow
def test_hosts_of_which_some_do_not_stop_are_named(ec2, cloud, hosts):
    ids = up(cloud)

    def some(words, forward):
        cloud.moto.client().stop_instances(InstanceIds=ids[:1])
        return refusal("InternalFailure")

    cloud.on("StopInstances", some, times=9)
    done = ec2("stop_hosts", "--yes")
    assert done.code == 14
    for id, state in zip(ids, ("stopped", "running", "running"), strict=True):
        assert f"{id} is {state}" in done.err
    cloud.acts.clear()
    assert ec2("stop_hosts", "--yes").code == 0
    assert states(ec2) == ["stopped"] * 3
