"""Launches that keep their hosts: answers that are lost, resources that AWS knows seconds later,
and a template that AWS does not delete.
"""

import os

import pytest
from cluster.ec2.support.cloud import Reply, everything, refusal

pytestmark = pytest.mark.long

DENIED = refusal("UnauthorizedOperation", "You may not")
LOST = refusal("IncompleteSignature", "the answer was lost on the way")
AGAIN = Reply(500, refusal("InternalError").body)
SPOT = ("--method", "spot")
GROUP = ("--placement-group", "yes")
MAKING = [("CreateSecurityGroup", ()), ("ImportKeyPair", ()), ("CreatePlacementGroup", GROUP),
          ("CreateLaunchTemplate", SPOT)]  # fmt: skip
ZONE = ("--availability-zone", "us-east-1a")


def after(reply):
    """Has AWS do what is asked, and answer something else."""

    def act(words, forward):
        forward()
        return reply

    return act


@pytest.mark.parametrize(("call", "words"), MAKING, ids=lambda value: str(value))
def test_what_was_made_and_whose_answer_was_lost_is_adopted(ec2, cloud, call, words):
    cloud.on(call, after(LOST))
    done = ec2("launch", "--yes", *ZONE, *words)
    assert done.code == 0, done.err
    assert cloud.calls.count(call) == (2 if words == SPOT else 1)  # a template for each role
    assert len(everything(cloud)["instances"]) == 3
    assert ec2("shutdown", "--yes").code == 0
    assert not everything(cloud)["keys"]


IAM = ("CreateRole", "PutRolePolicy", "AttachRolePolicy", "CreateInstanceProfile",
       "AddRoleToInstanceProfile")  # fmt: skip
ROLES = ("--supervise", "yes", "--master-method", "on-demand", "--connect", "ssm")


@pytest.fixture
def programs(folder, monkeypatch):
    """Puts stand-ins of the programs that `connect: ssm` needs into the path."""
    for name in ("aws", "session-manager-plugin"):
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


@pytest.mark.parametrize("call", IAM)
def test_a_role_whose_answer_was_lost_does_not_tear_down_a_launch(ec2, cloud, call, programs):
    cloud.on(call, after(refusal("ServiceFailure", "the answer was lost on the way")))
    done = ec2("launch", "--yes", *ZONE, *ROLES)
    assert done.code == 0, done.err
    assert len(everything(cloud)["instances"]) == 3
    iam = cloud.moto.client("iam")
    assert [len(profile["Roles"]) for profile in
            iam.list_instance_profiles()["InstanceProfiles"]] == [1, 1]  # fmt: skip
    assert ec2("shutdown", "--yes", *ROLES).code == 0
    assert not iam.list_roles()["Roles"]


def test_a_role_of_somebody_else_is_not_adopted(ec2, cloud, programs):
    trust = {"AssumeRolePolicyDocument": "{}"}

    def overtaken(words, forward):
        cloud.moto.client("iam").create_role(RoleName=words["RoleName"], **trust)
        return refusal("ServiceFailure")

    cloud.on("CreateRole", overtaken)
    done = ec2("launch", "--yes", *ZONE, *ROLES)
    assert done.code == 10
    assert "iam.create_role: ServiceFailure" in done.err
    assert not everything(cloud)["instances"]


def test_what_boto_asks_for_twice_is_adopted(ec2, cloud):
    """The second call is refused, since the first has made it."""
    for call in ("CreateSecurityGroup", "ImportKeyPair"):
        cloud.on(call, after(AGAIN))
    done = ec2("launch", "--yes", *ZONE)
    assert done.code == 0, done.err
    assert cloud.calls.count("CreateSecurityGroup") == 2
    assert len(everything(cloud)["instances"]) == 3


def test_a_group_of_somebody_else_is_not_adopted(ec2, cloud):
    """Another user makes a group of that name after the checks."""

    def overtaken(words, forward):
        names = {name: words[name] for name in ("GroupName", "VpcId")}
        cloud.moto.client().create_security_group(Description="of somebody else", **names)

    cloud.on("CreateSecurityGroup", overtaken)
    before = everything(cloud)
    done = ec2("launch", "--yes", *ZONE)
    assert done.code == 10
    assert "InvalidGroup.Duplicate" in done.err
    after_all = everything(cloud)
    assert len(after_all.pop("groups") - before.pop("groups")) == 1
    assert after_all == before


def test_a_group_that_aws_knows_some_seconds_later_is_waited_for(ec2, cloud):
    fresh = refusal("InvalidGroup.NotFound", "The security group does not exist")
    by_id = [fresh, fresh]

    def unknown(words, forward):
        return by_id.pop() if "GroupId.1" in words and by_id else None

    cloud.on("DescribeSecurityGroups", unknown, times=9)
    cloud.on("AuthorizeSecurityGroupIngress", fresh)
    cloud.on("RunInstances", fresh)
    cloud.on("RunInstances", refusal("InvalidKeyPair.NotFound", "The key pair does not exist"))
    done = ec2("launch", "--yes", *ZONE)
    assert done.code == 0, done.err
    assert not by_id
    assert len(everything(cloud)["instances"]) == 3


def test_a_template_that_cannot_be_deleted_leaves_the_cluster(ec2, cloud):
    cloud.on("DeleteLaunchTemplate", DENIED, times=9)
    done = ec2("launch", "--yes", *SPOT, *ZONE)
    assert done.code == 0, done.err
    assert "stays, and costs nothing; `shutdown` deletes it: ec2.delete_launch_template" in done.out
    assert len(everything(cloud)["instances"]) == 3
    cloud.acts.clear()
    assert ec2("shutdown", "--yes").code == 0
    assert not everything(cloud)["templates"]


def test_a_template_that_cannot_be_deleted_does_not_keep_a_launch_from_the_next_zone(ec2, cloud):
    cloud.on("DeleteLaunchTemplate", DENIED, times=9)
    cloud.on("CreateFleet", refusal("InsufficientInstanceCapacity"))
    done = ec2("launch", "--yes", *SPOT, "--zones", "us-east-1a,us-east-1b")
    assert done.code == 0, done.err
    assert "a launch template stays, and costs nothing" in done.out
    assert len(everything(cloud)["instances"]) == 3
