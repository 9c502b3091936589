"""The end of a cluster, with every kind of refusal by AWS on the way."""

import pytest
from cluster.ec2.faults.rig import patches, prepare
from cluster.ec2.support.cloud import everything, refusal
from cluster.ec2.support.lab import start
from support.selection import slow_but

from atomo_cluster.ec2.jobs.job import Job
from atomo_cluster.errors import RemoteError

pytestmark = pytest.mark.slow

DENIED = refusal("UnauthorizedOperation", "You may not")
CALLS = [
    ("ec2.cancel_spot_instance_requests", "CancelSpotInstanceRequests"),
    ("ec2.delete_fleets", "DeleteFleets"),
    ("ec2.describe_fleets", "DescribeFleets"),
    ("ec2.describe_tags", "DescribeTags"),
    ("ec2.describe_volumes", "DescribeVolumes"),
    ("ec2.describe_spot_instance_requests", "DescribeSpotInstanceRequests"),
    ("ec2.delete_security_group", "DeleteSecurityGroup"),
]


@pytest.fixture
def running(ec2, cloud):
    """Returns a cluster of spot hosts."""
    assert ec2("launch", "--yes", "--method", "spot").code == 0
    return everything(cloud)["instances"]


@pytest.mark.long
@pytest.mark.parametrize("refused", slow_but(CALLS[::4], CALLS), ids=lambda pair: pair[1])
def test_instances_end_whatever_else_aws_refuses(ec2, cloud, running, refused):
    call, action = refused
    cloud.on(action, DENIED, times=99)
    done = ec2("shutdown", "--yes")
    assert not everything(cloud)["instances"]
    assert done.code == 14
    assert f"AWS: {call}: UnauthorizedOperation: You may not" in done.err
    assert "verified" not in done.out


def test_a_protected_instance_does_not_save_the_others(ec2, cloud):
    """EC2 refuses a whole call for one instance in it."""
    assert ec2("launch", "--yes").code == 0
    protected = min(everything(cloud)["instances"])

    def refuse(words, forward):
        named = {value for key, value in words.items() if key.startswith("InstanceId.")}
        return refusal("OperationNotPermitted", "protected") if protected in named else None

    cloud.on("TerminateInstances", refuse, times=99)
    done = ec2("shutdown", "--yes", "--json")
    assert everything(cloud)["instances"] == {protected}
    assert done.code == 14
    assert f"still there, and costing: instance {protected} running" in done.err
    assert "OperationNotPermitted: protected" in done.err
    assert [thing["id"] for thing in done.record["left"] if thing["kind"] == "instance"] == [
        protected
    ]
    cloud.acts.clear()
    assert ec2("shutdown", "--yes").code == 0


def test_instances_that_aws_does_not_describe_are_ended_by_their_tags(ec2, cloud, running):
    cloud.on("DescribeInstances", DENIED, times=99)
    done = ec2("shutdown", "--yes")
    assert done.code == 14
    assert not everything(cloud)["instances"]
    assert "AWS: ec2.describe_instances: UnauthorizedOperation" in done.err


@pytest.fixture
def training(monkeypatch):
    """Has the master run a job."""
    job = Job(3, "running", None, 10, 11, None, "", "--epochs 30")
    monkeypatch.setattr("atomo_cluster.ec2.commands.clusters.origin.list_jobs", lambda *_: [job])


def test_a_cluster_of_another_machine_is_named_before_the_question(
    ec2, cloud, training, monkeypatch
):
    monkeypatch.setattr("atomo_cluster.ec2.launch.fleet.this_machine", lambda: "bob@desk")
    assert ec2("launch", "--yes").code == 0
    declined = ec2("shutdown", answer="no\n")
    assert declined.code == 13
    for done in (declined, ec2("shutdown", "--dry-run"), ec2("shutdown", "--yes")):
        assert (
            "LAUNCHED FROM ANOTHER MACHINE: launched from bob@desk, owner user/moto, 0 h 0 min ago"
            in done.out
        )
        assert "its job: 3 (--epochs 30) is running" in done.out
    assert not everything(cloud)["instances"]


def test_a_cluster_of_this_machine_is_ended_without_ado(ec2, cloud, training, folder):
    assert ec2("launch", "--yes").code == 0
    assert "LAUNCHED FROM" not in ec2("shutdown", "--dry-run").out
    (folder / "state/test/hosts.json").unlink()
    assert "NOT IN THE LEDGER OF THIS MACHINE" in ec2("shutdown", "--yes").out


def test_a_master_that_does_not_answer_leaves_its_job_unknown(ec2, cloud, monkeypatch):
    def silent(*_):
        raise RemoteError("the master lets nobody in")

    monkeypatch.setattr("atomo_cluster.ec2.commands.clusters.origin.list_jobs", silent)
    start(cloud, "master")
    done = ec2("shutdown", "--yes")
    assert done.code == 0
    assert "launched from unknown, owner user/moto" in done.out
    assert "its job: unknown, since the master does not answer from here: the master" in done.out


def test_the_job_of_a_cluster_of_another_machine_is_asked_for_over_ssh(
    ec2, cloud, folder, monkeypatch
):
    monkeypatch.setattr("atomo_cluster.ec2.launch.fleet.this_machine", lambda: "bob@desk")
    prepare(cloud, folder)
    with patches(folder):
        assert ec2("launch", "--yes").code == 0
        assert "its job: none runs or waits" in ec2("shutdown", "--dry-run").out
