"""Hosts that are alive past their fuses: every command that lists hosts says so in capitals."""

from datetime import datetime, timedelta, timezone

import pytest
from cluster.ec2.support.lab import start

pytestmark = pytest.mark.long

SMALL = ("--n-workers", "1")


def age(cloud, id, hours):
    """Has a host be launched so many hours ago."""
    when = datetime.now(timezone.utc) - timedelta(hours=hours)
    cloud.starts[id] = when.strftime("%Y-%m-%dT%H:%M:%S.000Z")


@pytest.fixture
def late(cloud):
    """Returns a worker that is alive an hour after its fuse, beside a master."""
    start(cloud, "master")
    worker = start(cloud, "worker")
    age(cloud, worker, hours=9)
    return worker


@pytest.mark.parametrize(
    "words",
    [("status",), ("cost",), ("list_running_instances",), ("jobs",), ("extend", "9", "--dry-run"),
     ("stop_hosts", "--dry-run"), ("resize", "1", "--dry-run"), ("plan",), ("get_hosts",),
     ("shutdown", "--dry-run")],
    ids=lambda words: words[0],
)  # fmt: skip
def test_a_host_past_its_fuse_is_an_error_in_every_command(ec2, late, words):
    done = ec2(*words, *SMALL)
    assert f"ERROR: {late} IS PAST ITS FUSE AND ALIVE: it should have ended at " in done.err
    assert "`shutdown` ends the cluster; or terminate the instance in the EC2 console" in done.err


def test_status_ends_with_14_and_names_the_host(ec2, late):
    done = ec2("status", "--json", *SMALL)
    assert done.code == 14
    assert done.record["past_fuse"] == [late]
    assert "PAST ITS FUSE" in ec2("status", *SMALL).out


def test_a_host_that_has_only_just_reached_its_fuse_is_no_error(ec2, cloud):
    worker = start(cloud, "master")
    age(cloud, worker, hours=8.05)
    done = ec2("status", *SMALL)
    assert done.code == 0, done.err
    assert "ends now" in done.out


def test_a_stopped_host_has_no_fuse_to_outlive(ec2, cloud, late):
    cloud.moto.client().stop_instances(InstanceIds=[late])
    done = ec2("status", *SMALL)
    assert done.code == 0, done.err
    assert "PAST" not in done.out + done.err
