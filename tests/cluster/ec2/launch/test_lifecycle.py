"""The life of a cluster from launch to shutdown: no resource is left, and no other resource is
changed.
"""

import base64
import os
import re
import signal

import pytest
from cluster.ec2.support.cloud import Reply, everything, fewer, refusal

from atomo_cluster.ec2.aws.client import Aws
from atomo_cluster.ec2.aws.tags import CLUSTER, OWNER

pytestmark = pytest.mark.slow

SPOT = ("--method", "spot")
both_ways = pytest.mark.parametrize(
    "method", ["spot", pytest.param("on-demand", marks=pytest.mark.long)]
)


def ids(result):
    return [host["id"] for host in result.record]


def launched(ec2, *words):
    done = ec2("launch", "--yes", "--json", *words)
    assert done.code == 0, done.err
    return ids(done)


@both_ways
def test_launch_status_hosts_shutdown(ec2, cloud, folder, method):
    before = everything(cloud)
    done = ec2("launch", "--yes", "--json", "--method", method)
    assert done.code == 0, done.err
    assert [host["role"] for host in done.record] == ["master", "worker", "worker"]
    assert {host["spot"] for host in done.record} == {method == "spot"}
    status = ec2("status", "--json", "--html", "status.html").record
    assert [host["id"] for host in status["hosts"]] == ids(done)
    page = (folder / "status.html").read_text()
    assert all(host["id"] in page for host in done.record)
    assert "3 of 3 hosts run" in page
    assert ec2("get_hosts").code == 0
    inside = [host["private_ip"] for host in done.record]
    written = folder / "clusters" / "test"
    assert (written / "hosts_address").read_text().split() == inside
    aliases = ["deeplearning-worker1", "deeplearning-worker2", "deeplearning-worker3"]
    assert (written / "hosts_alias").read_text().split() == aliases
    pairs = [line.split("\t") for line in (written / "hosts").read_text().splitlines()]
    assert pairs == [list(pair) for pair in zip(inside, aliases, strict=True)]
    gone = ec2("shutdown", "--yes")
    assert gone.code == 0, gone.err
    assert "verified: nothing in us-east-1 carries the tags of test" in gone.out
    assert everything(cloud) == before


def test_hosts_end_themselves_and_carry_the_tags(ec2, cloud):
    launched(ec2, "--max-hours", "1.5")
    client = cloud.moto.client()
    for batch in client.describe_instances()["Reservations"]:
        for one in batch["Instances"]:
            tags = {tag["Key"]: tag["Value"] for tag in one["Tags"]}
            assert tags[CLUSTER] == "test"
            assert tags[OWNER] == "user/moto"
            told = client.describe_instance_attribute(
                InstanceId=one["InstanceId"], Attribute="userData"
            )
            script = base64.b64decode(told["UserData"]["Value"]).decode()
            assert script.splitlines()[1].startswith("shutdown -h +90")
            behaviour = client.describe_instance_attribute(
                InstanceId=one["InstanceId"], Attribute="instanceInitiatedShutdownBehavior"
            )
            assert behaviour["InstanceInitiatedShutdownBehavior"]["Value"] == "terminate"
    volumes = client.describe_volumes()["Volumes"]
    assert len(volumes) == 3
    assert all({"Key": CLUSTER, "Value": "test"} in volume["Tags"] for volume in volumes)
    assert all(volume["Encrypted"] for volume in volumes)
    client.terminate_instances(InstanceIds=list(everything(cloud)["instances"]))
    assert not everything(cloud)["volumes"]  # the disks go with the hosts, fuse or not


@both_ways
def test_launch_twice_launches_once(ec2, cloud, method):
    first = launched(ec2, "--method", method)
    after = everything(cloud)
    assert ec2("plan", "--json", "--method", method).record["launch"] == []
    assert launched(ec2, "--method", method) == first
    assert everything(cloud) == after


@pytest.mark.long
@both_ways
def test_launch_replaces_only_the_workers_that_are_gone(ec2, cloud, method):
    master, kept, lost = launched(ec2, "--method", method)
    cloud.moto.client().terminate_instances(InstanceIds=[lost])
    assert "1 of 3 hosts are missing" in ec2("status").out
    partial = ec2("get_hosts")
    assert partial.code == 10
    assert "2 of 3 hosts run; `launch` starts the others" in partial.err
    assert ec2("get_hosts", "--partial").code == 0
    plan = ec2("plan", "--json").record
    assert [(group["role"], group["count"]) for group in plan["launch"]] == [("worker", 1)]
    now = launched(ec2, "--method", method)
    assert now[0] == master
    assert {master, kept} < set(now)
    assert lost not in now
    assert len(now) == 3


def test_a_smaller_cluster_is_not_made_by_launching(ec2, cloud):
    launched(ec2)
    before = everything(cloud)
    done = ec2("launch", "--yes", "--n-workers", "1")
    assert done.code == 2
    assert "the cluster has 2 workers, and n_workers is 1; `launch` never removes" in done.err
    assert everything(cloud) == before


def test_a_stopped_host_is_not_counted(ec2, cloud):
    last = launched(ec2)[-1]
    cloud.moto.client().stop_instances(InstanceIds=[last])
    done = ec2("launch", "--yes")
    assert done.code == 2
    assert f"{last} (worker) is stopped: `start_hosts` starts it" in done.err


@pytest.mark.long
@pytest.mark.parametrize(
    ("other", "method"),
    [(("--name", "other"), "spot"), (("--owner", "somebody@else"), "on-demand")],
)
def test_another_cluster_in_the_account_is_left_alone(ec2, cloud, other, method):
    launched(ec2, *other, "--method", method)
    client = cloud.moto.client()
    client.run_instances(ImageId="ami-785db401", MinCount=1, MaxCount=1, InstanceType="t3.micro")
    client.create_volume(AvailabilityZone="us-east-1a", Size=8)
    client.create_key_pair(KeyName="of-somebody-else")
    before = everything(cloud)
    launched(ec2, "--method", method, "--owner", "user/moto")
    assert len(ec2("status", "--json").record["hosts"]) == 3
    ended = ec2("shutdown", "--yes")
    assert ended.code == (14 if other[0] == "--owner" else 0)
    assert everything(cloud) == before
    told = "left alone: hosts of a cluster called test live that are not of 'user/moto': 3 of"
    assert (told in ended.err) == (other[0] == "--owner")
    assert len(ec2("status", "--json", *other).record["hosts"]) == 3
    assert ec2("shutdown", "--yes", *other).code == 0
    assert len(everything(cloud)["instances"]) == 1


def test_no_means_no(ec2, cloud):
    before = everything(cloud)
    for answer in ("n\n", "\n", ""):
        done = ec2("launch", answer=answer)
        assert done.code == 13
        assert "Proceed? [y/N]" in done.err
        assert "m5.large" in done.out  # the plan was printed first
    assert everything(cloud) == before
    assert ec2("launch", answer="y\n").code == 0
    running = everything(cloud)
    assert ec2("shutdown", answer="no\n").code == 13
    assert everything(cloud) == running


def changing(calls):
    """Returns the calls that could have changed something."""
    return {name for name in calls if not re.match("Describe|Get|List", name)}


@both_ways
def test_a_dry_run_asks_ec2_and_does_nothing(ec2, cloud, method):
    before = everything(cloud)
    seen = []
    for action in ("RunInstances", "CreateFleet", "CreateLaunchTemplate", "CreateSecurityGroup"):
        cloud.on(action, lambda words, forward: seen.append(words.get("DryRun")), times=9)
    done = ec2("launch", "--dry-run", "--method", method)
    assert done.code == 0, done.err
    assert "ec2.run_instances (worker): EC2 would do it" in done.out
    assert seen
    assert set(seen) == {"true"}
    assert everything(cloud) == before


def test_a_dry_run_says_what_ec2_refuses(ec2, cloud):
    cloud.on("RunInstances", refusal("UnauthorizedOperation", "You may not"))
    done = ec2("launch", "--dry-run")
    assert done.code == 10
    assert "UnauthorizedOperation: You may not; the identity lacks this permission" in done.err


def test_a_dry_run_of_a_shutdown_ends_nothing(ec2, cloud):
    launched(ec2)
    before = everything(cloud)
    done = ec2("shutdown", "--dry-run")
    assert done.code == 0
    assert "ec2.terminate_instances: EC2 would do it" in done.out
    assert everything(cloud) == before


def no_capacity(cloud, method):
    """The first group of hosts can be had, the second cannot, nor anything elsewhere."""
    shortage = refusal("InsufficientInstanceCapacity", "We have no m5.large")
    action = "CreateFleet" if method == "spot" else "RunInstances"
    cloud.on(action, lambda words, forward: None)
    cloud.on(action, shortage, times=99)


@pytest.mark.long
@both_ways
def test_too_little_capacity_rolls_back(ec2, cloud, method):
    before = everything(cloud)
    no_capacity(cloud, method)
    done = ec2("launch", "--yes", "--method", method)
    assert done.code == 10
    assert "InsufficientInstanceCapacity: We have no m5.large; AWS has too few" in done.err
    assert "nothing of it is left" in done.out
    assert everything(cloud) == before


def test_a_fleet_that_is_not_complete_rolls_back(ec2, cloud):
    before = everything(cloud)
    cloud.on("CreateFleet", fewer)
    done = ec2("launch", "--yes", *SPOT, "--availability-zone", "us-east-1a")
    assert done.code == 10
    assert "spot: 1 of 2 workers of type m5.large: UnfulfillableCapacity: none" in done.err
    assert everything(cloud) == before


@pytest.mark.long
def test_a_roll_back_keeps_what_was_there_before(ec2, cloud):
    lost = launched(ec2)[-1]
    cloud.moto.client().terminate_instances(InstanceIds=[lost])
    before = everything(cloud)
    cloud.on("RunInstances", refusal("InsufficientInstanceCapacity"), times=9)
    assert ec2("launch", "--yes").code == 10
    assert everything(cloud) == before


def lost_answer(words, forward):
    """EC2 carried out the call, and the answer was lost."""
    forward()
    return Reply(
        500, b"<Response><Errors><Error><Code>InternalError</Code></Error></Errors></Response>"
    )


@pytest.mark.long
def test_hosts_whose_answer_was_lost_are_rolled_back(ec2, cloud):
    before = everything(cloud)
    cloud.on("RunInstances", lost_answer, times=20)
    done = ec2("launch", "--yes")
    assert done.code == 10
    assert everything(cloud) == before


def test_an_interrupt_rolls_back(ec2, cloud, monkeypatch):
    before = everything(cloud)
    wait = Aws.wait

    def interrupted(self, waiter, *rest, **arguments):
        if waiter == "instance_running":
            raise KeyboardInterrupt
        wait(self, waiter, *rest, **arguments)

    monkeypatch.setattr(Aws, "wait", interrupted)
    assert ec2("launch", "--yes").code == 130
    assert everything(cloud) == before


@pytest.fixture
def heeded():
    """A closed terminal counts, even where these tests run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_in_the_middle_of_an_order_rolls_back(ec2, cloud, number, heeded):
    before = everything(cloud)

    def cut_off(words, forward):
        reply = forward()
        os.kill(os.getpid(), number)
        return reply

    cloud.on("RunInstances", cut_off)
    assert ec2("launch", "--yes").code == 130
    assert everything(cloud) == before
    assert signal.getsignal(number) is signal.SIG_DFL


@pytest.mark.long
def test_two_launches_at_once_do_not_make_two_clusters(ec2, cloud):
    started = []

    def meanwhile(words, forward):
        if not started:  # another launch overtakes this one
            started.append(True)
            tags = [{"Key": CLUSTER, "Value": "test"}, {"Key": OWNER, "Value": "user/moto"}]
            cloud.moto.client().run_instances(
                ImageId="ami-785db401", MinCount=3, MaxCount=3, InstanceType="m5.large",
                TagSpecifications=[{"ResourceType": "instance", "Tags": tags}],
            )  # fmt: skip

    cloud.on("RunInstances", meanwhile)
    done = ec2("launch", "--yes")
    assert done.code == 10
    assert "another `launch` ran at the same time" in done.err
    assert len(everything(cloud)["instances"]) == 3  # the other's


@pytest.mark.long
def test_a_roll_back_that_fails_says_what_is_left(ec2, cloud):
    no_capacity(cloud, "on-demand")
    cloud.on("TerminateInstances", refusal("UnauthorizedOperation", "You may not"), times=99)
    done = ec2("launch", "--yes")
    assert done.code == 14
    assert "still there, and costing: instance i-" in done.err
    assert "AWS: ec2.terminate_instances: UnauthorizedOperation: You may not" in done.err
    assert "Run `shutdown`" in done.err
    cloud.acts.clear()
    assert ec2("shutdown", "--yes").code == 0
    assert not everything(cloud)["instances"]


@pytest.mark.long
def test_shutdown_says_what_it_could_not_delete(ec2, cloud):
    launched(ec2)
    cloud.on("DeleteSecurityGroup", refusal("DependencyViolation"), times=40)
    done = ec2("shutdown", "--yes", "--json")
    assert done.code == 14
    assert re.search("still there: security-group sg-", done.err)
    assert done.record["left"][0]["kind"] == "security-group"
    assert "verified" not in done.err
    cloud.acts.clear()
    assert ec2("shutdown", "--yes").code == 0


def test_shutdown_twice_is_fine(ec2, cloud):
    launched(ec2)
    assert ec2("shutdown", "--yes").code == 0
    again = ec2("shutdown", "--yes")
    assert again.code == 0
    assert "verified: nothing" in again.out


@pytest.mark.long
def test_disks_that_outlive_their_hosts_are_deleted(ec2, cloud):
    launched(ec2)
    client = cloud.moto.client()
    tags = [{"Key": CLUSTER, "Value": "test"}, {"Key": OWNER, "Value": "user/moto"}]
    client.create_volume(
        AvailabilityZone="us-east-1a", Size=8,
        TagSpecifications=[{"ResourceType": "volume", "Tags": tags}],
    )  # fmt: skip
    assert ec2("shutdown", "--yes").code == 0
    assert not everything(cloud)["volumes"]


@pytest.mark.long
def test_what_others_tagged_like_the_cluster_is_named_and_kept(ec2, cloud):
    launched(ec2)
    client = cloud.moto.client()
    tags = [{"Key": CLUSTER, "Value": "test"}, {"Key": OWNER, "Value": "user/moto"}]
    volume = client.create_volume(AvailabilityZone="us-east-1a", Size=8)["VolumeId"]
    snapshot = client.create_snapshot(
        VolumeId=volume, TagSpecifications=[{"ResourceType": "snapshot", "Tags": tags}]
    )["SnapshotId"]
    done = ec2("shutdown", "--yes")
    assert done.code == 14
    assert f"still there: snapshot {snapshot} not made here" in done.err
    assert client.describe_snapshots(SnapshotIds=[snapshot])["Snapshots"]
    assert everything(cloud)["volumes"] == {volume}
