"""Failover to the next region when a region has no capacity. Every command finds the region of the
cluster.
"""

import pytest
from cluster.ec2.support.cloud import refusal, region

pytestmark = pytest.mark.long

WORDS = ("--regions", "us-east-1,us-west-2")
SHORTAGE = refusal("InsufficientInstanceCapacity", "We have no m5.large")


@pytest.fixture
def scarce(cloud):
    """Makes all zones of us-east-1 lack capacity, and records the calls by region."""
    asked = []
    answer = cloud.answer

    def noted(path, headers, body):
        if b"Action=RunInstances" in body and b"DryRun" not in body:
            asked.append(region(headers))
            if asked[-1] == "us-east-1":
                return SHORTAGE
        return answer(path, headers, body)

    cloud.answer = noted
    yield asked
    cloud.answer = answer


def running(cloud, name):
    client = cloud.moto.region(name)
    batches = client.describe_instances()["Reservations"]
    return [one["InstanceId"] for batch in batches for one in batch["Instances"]
            if one["State"]["Name"] == "running"]  # fmt: skip


@pytest.mark.slow
def test_the_next_region_is_tried_and_every_command_finds_it(ec2, cloud, scarce):
    shown = ec2("plan", *WORDS)
    assert shown.code == 0, shown.err
    assert "regions, tried until one has the capacity" in shown.out
    done = ec2("launch", "--yes", "--json", *WORDS)
    assert done.code == 0, done.err
    assert "us-east-1 has no capacity (InsufficientInstanceCapacity); next: us-west-2" in done.err
    assert scarce[0] == "us-east-1"
    assert {host["zone"][:-1] for host in done.record} == {"us-west-2"}
    ids = {host["id"] for host in done.record}
    assert set(running(cloud, "us-west-2")) == ids
    assert not running(cloud, "us-east-1")
    assert {host["id"] for host in ec2("status", "--json", *WORDS).record["hosts"]} == ids
    scarce.clear()
    more = ec2("launch", "--yes", "--json", "--n-workers", "3", *WORDS)
    assert more.code == 0, more.err
    assert set(scarce) == {"us-west-2"}  # where the others are
    gone = ec2("shutdown", "--yes", *WORDS)
    assert gone.code == 0, gone.err
    for name in ("us-east-1", "us-west-2"):
        assert f"verified: nothing in {name} carries the tags of test" in gone.out
        assert not running(cloud, name)


@pytest.mark.slow
def test_a_region_that_refuses_does_not_keep_the_others_alive(ec2, cloud):
    assert ec2("launch", "--yes", "--region", "us-west-2").code == 0
    assert ec2("launch", "--yes", "--region", "us-east-1").code == 0
    cloud.on("TerminateInstances", refusal("UnauthorizedOperation", "You may not"), times=12)
    done = ec2("shutdown", "--yes", *WORDS)
    assert done.code == 14
    assert len(running(cloud, "us-east-1")) == 3
    assert all(id in done.err for id in running(cloud, "us-east-1"))
    assert not running(cloud, "us-west-2")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--regions", "us-east-1,moon"), "regions 'moon': a region such as"),
        ((*WORDS, "--subnet-id", "subnet-1"), "subnet_id 'subnet-1' is in one region"),
        ((*WORDS, "--zones", "eu-west-1a"), "'eu-west-1a' is not in region 'us-east-1 or us-west-"),
        (("--regions", "us-west-2", "--zones", "us-east-1a"), "is not in region 'us-west-2'"),
    ],
)
def test_what_does_not_go_together_is_refused(ec2, cloud, words, told):
    done = ec2("plan", *words)
    assert done.code == 2
    assert told in done.err
    assert not cloud.calls


def test_one_go_takes_one_region(ec2, cloud):
    done = ec2("clean_launch_and_run", "--yes", *WORDS)
    assert done.code == 2
    assert "takes one region" in done.err
