"""Ends of hosts by AWS: the schedules that commands make, move and delete."""

import json
import shlex
from datetime import datetime, timedelta, timezone

import pytest
from cluster.ec2.support.cloud import (
    everything,
    refusal,
    refusal_of_scheduler,
    write_cluster,
)
from cluster.ec2.support.iam_policy import ALLOWED, Request, decision

from atomo_cluster.ec2.aws.tags import ClusterTags
from atomo_cluster.ec2.hosts.ssh import Answer
from atomo_cluster.ec2.places.aws_ends import AFTER

pytestmark = pytest.mark.long

OWNED = ClusterTags("test", "user/moto")
TARGET = "arn:aws:scheduler:::aws-sdk:ec2:terminateInstances"
ROLE = OWNED.end_role_name("us-east-1")
DENIED = refusal_of_scheduler("AccessDeniedException", status=403)
NO_RIGHT = refusal("AccessDenied")


@pytest.fixture
def cluster(ec2, cloud, folder, monkeypatch):
    """Returns the settings of a cluster that AWS ends too, with hosts that answer."""
    write_cluster(folder / "cluster.yaml", state_dir=str(folder / "state"))
    monkeypatch.setattr(
        "atomo_cluster.ec2.hosts.ssh.Ssh.run",
        lambda ssh, host, command, *_, **__: Answer(
            host, 0, "18000\n" if command.endswith("pause") else "", ""
        ),
    )
    monkeypatch.setattr("atomo_cluster.ec2.hosts.host_keys.HostKeys.pin", lambda *_: "key")
    monkeypatch.setattr("atomo_cluster.ec2.commands.clusters.stop_hosts.check_idle", lambda *_: 0)


def schedules(cloud):
    """Returns the schedules of the account, by name."""
    client = cloud.moto.client("scheduler")
    listed = client.list_schedules()["Schedules"]
    return {
        one["Name"]: client.get_schedule(Name=one["Name"], GroupName=one["GroupName"])
        for one in listed
    }


def ends(cloud):
    """Returns the times of the schedules, by host."""
    return {
        id: datetime.strptime(one["ScheduleExpression"], "at(%Y-%m-%dT%H:%M:%S)").replace(
            tzinfo=timezone.utc
        )
        for id, one in schedules(cloud).items()
    }


def fuses(ec2):
    """Returns the fuses that `status` shows, by host."""
    hosts = ec2("status", "--json").record["hosts"]
    return {host["id"]: datetime.fromisoformat(host["fuse"]) for host in hosts}


def assert_after_fuses(ec2, cloud):
    """Compares the schedules with the fuses of the hosts."""
    shown, scheduled = fuses(ec2), ends(cloud)
    assert shown.keys() == scheduled.keys()
    for id, fuse in shown.items():
        assert abs(scheduled[id] - fuse - AFTER) < timedelta(seconds=2)


def let_pass(cloud, now):
    """Runs the schedules that are due, as AWS would: with the policy of their role."""
    iam, client = cloud.moto.client("iam"), cloud.moto.client("ec2")
    for id, when in ends(cloud).items():
        if when > now:
            continue
        target = schedules(cloud)[id]["Target"]
        assert target["Arn"] == TARGET
        role = target["RoleArn"].rpartition("/")[2]
        policy = iam.get_role_policy(RoleName=role, PolicyName="atomo")["PolicyDocument"]
        named = json.loads(target["Input"])["InstanceIds"]
        for host in named:
            listed = client.describe_tags(Filters=[{"Name": "resource-id", "Values": [host]}])
            tags = {f"aws:ResourceTag/{tag['Key']}": [tag["Value"]] for tag in listed["Tags"]}
            arn = f"arn:aws:ec2:us-east-1:123456789012:instance/{host}"
            context = {**tags, "aws:RequestedRegion": ["us-east-1"]}
            request = Request("ec2:TerminateInstances", arn, context)
            assert decision([policy], request) == ALLOWED
            foreign = {**context, "aws:ResourceTag/atomo:owner": ["bob"]}
            request = Request("ec2:TerminateInstances", arn, foreign)
            assert decision([policy], request) != ALLOWED
        client.terminate_instances(InstanceIds=named)


def test_the_life_of_the_ends_of_a_cluster(ec2, cloud, cluster):
    launched = ec2("launch", "--yes")
    assert launched.code == 0, launched.err
    assert "WITHOUT AN END" not in launched.err
    assert "end      by AWS, 15 minutes after the fuse" in launched.out
    assert "EventBridge Scheduler: $0.00 (14 million schedules a month are free" in launched.out
    assert_after_fuses(ec2, cloud)
    assert {one["ActionAfterCompletion"] for one in schedules(cloud).values()} == {"DELETE"}
    moved = ec2("extend", "20", "--yes")
    assert moved.code == 0, moved.err
    assert_after_fuses(ec2, cloud)
    assert ec2("resize", "1", "--yes").code == 0
    assert_after_fuses(ec2, cloud)
    stopped = ec2("stop_hosts", "--yes", "--n-workers", "1")
    assert stopped.code == 0, stopped.err
    assert not schedules(cloud)
    assert ec2("start_hosts", "--yes", "--n-workers", "1").code == 0
    assert_after_fuses(ec2, cloud)
    now = datetime.now(timezone.utc)
    let_pass(cloud, now + timedelta(hours=1))
    assert len(everything(cloud)["instances"]) == 2
    let_pass(cloud, now + timedelta(hours=21))
    assert not everything(cloud)["instances"]
    assert ec2("shutdown", "--yes").code == 0
    assert not schedules(cloud)
    groups = cloud.moto.client("scheduler").list_schedule_groups()["ScheduleGroups"]
    assert [group["Name"] for group in groups] == ["default"]
    assert not cloud.moto.client("iam").list_roles()["Roles"]


@pytest.mark.parametrize("call", ["CreateRole", "PutRolePolicy"])
def test_a_launch_without_an_end_by_aws_says_so_and_goes_on(ec2, cloud, cluster, call):
    cloud.on(call, NO_RIGHT)
    done = ec2("launch", "--yes")
    assert done.code == 0, done.err
    planned = " ".join(done.out.split())
    assert f"if this identity may make the role {ROLE}: else see `iam --end-role`" in planned
    assert "WITHOUT AN END BY AWS: hosts that hang outlive their fuses: iam." in done.err
    assert f"the role {ROLE} is missing, and an administrator makes it once" in done.err
    assert "`iam --for launch` prints the rights and `iam --end-role` the role" in done.err
    assert not schedules(cloud)
    shown = ec2("status", "--json")
    assert shown.code == 0
    assert sorted(shown.record["without_end_by_aws"]) == sorted(fuses(ec2))
    assert "WITHOUT AN END BY AWS: i-" in shown.err
    again = ec2("launch", "--yes")
    assert again.code == 0
    assert_after_fuses(ec2, cloud)
    assert ec2("status", "--json").record["without_end_by_aws"] == []


def test_with_aws_end_yes_hosts_without_an_end_are_an_error(ec2, cloud, cluster):
    cloud.on("CreateRole", NO_RIGHT)
    done = ec2("launch", "--yes", "--aws-end", "yes")
    assert done.code == 14
    assert "aws_end: yes, and these run, and cost, without an end by AWS: i-" in done.err
    assert set(fuses(ec2)) == everything(cloud)["instances"]
    cloud.on("GetScheduleGroup", DENIED, times=2)
    assert ec2("extend", "20", "--yes", "--aws-end", "yes").code == 10


def test_an_identity_without_rights_to_schedules_works_as_before(ec2, cloud, cluster):
    cloud.on("GetScheduleGroup", DENIED, times=99)
    planned = ec2("plan")
    assert "PERHAPS NOT: scheduler.get_schedule_group: AccessDeniedException" in planned.out
    assert ec2("launch", "--yes").code == 0
    moved = ec2("extend", "20", "--yes")
    assert moved.code == 0
    assert "THE FUSES HAVE MOVED, AND THE ENDS BY AWS PERHAPS NOT: scheduler.get" in moved.err
    assert f"group {OWNED.label} in EventBridge Scheduler" in moved.err
    shown = ec2("status", "--json")
    assert shown.code == 0
    assert shown.record["without_end_by_aws"] is None
    assert "end by AWS: unknown" in shown.err
    stopped = ec2("stop_hosts", "--yes")
    assert stopped.code == 0
    assert f"NOT LOOKED AT: the schedules of group {OWNED.label}" in stopped.err
    assert ec2("start_hosts", "--yes").code == 0
    done = ec2("shutdown", "--yes")
    assert done.code == 0
    assert "verified" not in done.out
    assert "NOT LOOKED AT: the schedules of ends by AWS are perhaps there" in done.out
    assert f"group {OWNED.label} in us-east-1" in done.out


def test_an_administrator_makes_the_role_by_the_printed_commands(ec2, cloud, cluster):
    arn = "arn:aws:iam::123456789012:user/moto"
    iam = cloud.moto.client("iam")
    for line in ec2("iam", "--end-role", "--identity", arn).out.splitlines():
        program, service, command, *words = shlex.split(line)
        assert (program, service) == ("aws", "iam")
        options = dict(zip(words[::2], words[1::2], strict=True))
        names = {name.strip("-").title().replace("-", ""): value for name, value in options.items()}
        getattr(iam, command.replace("-", "_"))(**names)
    for call in ("CreateRole", "PutRolePolicy", "DeleteRole", "DeleteRolePolicy"):
        cloud.on(call, NO_RIGHT, times=9)
    assert "PERHAPS" not in ec2("plan").out
    assert ec2("launch", "--yes").code == 0
    assert_after_fuses(ec2, cloud)
    done = ec2("shutdown", "--yes")
    assert f"the role {ROLE} stays for the next launch, and costs nothing" in done.out
    assert "verified" in done.out
    assert not schedules(cloud)
    again = ec2("launch", "--yes")
    assert "WITHOUT" not in again.err


def test_an_end_that_does_not_move_with_the_fuse_is_an_error(ec2, cloud, cluster):
    assert ec2("launch", "--yes").code == 0
    cloud.on("UpdateSchedule", DENIED)
    done = ec2("extend", "20", "--yes")
    assert done.code == 10
    assert "THE FUSES HAVE MOVED, AND THE ENDS BY AWS PERHAPS NOT: scheduler.update" in done.err


def test_hosts_with_an_end_by_aws_are_not_stopped(ec2, cloud, cluster):
    """It would terminate them, and their disks."""
    assert ec2("launch", "--yes").code == 0
    cloud.on("DeleteSchedule", DENIED, times=2)
    done = ec2("stop_hosts", "--yes")
    assert done.code == 10
    assert "no host was stopped: AWS would terminate them, and their disks" in done.err
    assert f"by the schedules of group {OWNED.label}" in done.err
    assert "StopInstances" not in cloud.calls
    assert_after_fuses(ec2, cloud)
    assert ec2("stop_hosts", "--yes", "--aws-end", "no").code == 10


def test_a_schedule_that_is_not_deleted_is_named(ec2, cloud, cluster):
    assert ec2("launch", "--yes").code == 0
    cloud.on("DeleteSchedule", DENIED)
    fewer = ec2("resize", "1", "--yes")
    assert fewer.code == 0
    assert f"of group {OWNED.label} are perhaps left; they cost nothing" in fewer.out
    cloud.on("DeleteScheduleGroup", DENIED)
    done = ec2("shutdown", "--yes")
    assert done.code == 0
    assert "verified" not in done.out
    assert f"perhaps there, and cost nothing: group {OWNED.label} in us-east-1" in done.out
    again = ec2("shutdown", "--yes")
    assert "verified" in again.out
    assert not schedules(cloud)


def test_the_hosts_of_clean_launch_and_run_have_ends_by_aws(ec2, cloud, cluster, monkeypatch):
    commands = "atomo_cluster.ec2.commands.clusters.clean_launch_and_run"
    monkeypatch.setattr(f"{commands}.cluster_hosts", lambda run: [])
    monkeypatch.setattr(f"{commands}.set_up", lambda *_: None)
    monkeypatch.setattr(f"{commands}.train", lambda *_: 0)
    assert ec2("clean_launch_and_run", "--yes").code == 0
    assert_after_fuses(ec2, cloud)


def test_without_ends_by_aws_none_is_made_and_the_plan_says_so(ec2, cloud, cluster):
    shown = ec2("plan", "--aws-end", "no")
    assert "none by AWS (aws_end: no): a host that hangs may outlive its fuse" in shown.out
    assert ec2("launch", "--yes", "--aws-end", "no").code == 0
    assert not schedules(cloud)
    assert not cloud.moto.client("iam").list_roles()["Roles"]
    assert ec2("status", "--json", "--aws-end", "no").record["without_end_by_aws"] is None


def test_the_policy_has_the_rights_and_the_boundary_the_end(ec2, cluster):
    printed = {
        one["Sid"]: one for one in json.loads(ec2("iam", "--for", "launch").out)["Statement"]
    }
    assert printed["PassEndRole"]["Condition"]["StringEquals"] == {
        "iam:PassedToService": "scheduler.amazonaws.com"
    }
    assert "LookAtEndsScheduleEnds" in printed
    assert "iam:CreateRole" not in str(printed)
    without = ec2("iam", "--for", "launch", "--aws-end", "no").out
    assert "scheduler" not in without
    assert ec2("iam", "--boundary").code == 2
    assert ec2("iam", "--end-role", "--aws-end", "no").code == 2
    for settings in (("--connect", "ssm"), ("--permissions-boundary", "bound")):
        boundary = json.loads(ec2("iam", "--boundary", *settings).out)["Statement"]
        assert "ec2:TerminateInstances" in str(boundary)
    named = ec2("iam", "--end-role", "--permissions-boundary", "bound").out
    assert "--permissions-boundary arn:aws:iam::123456789012:policy/bound" in named
