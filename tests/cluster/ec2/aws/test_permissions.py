"""`iam --check` says what of the policy the identity lacks, and what nobody tells."""

import pytest
from cluster.ec2.support.cloud import Reply, refusal

from atomo_cluster.ec2.aws.client import Aws
from atomo_cluster.ec2.aws.permissions import principal

pytestmark = pytest.mark.long

ROLE = "<R><GetRoleResult><Role><Arn>arn:aws:iam::1:role/path/T</Arn></Role></GetRoleResult></R>"
SESSION = "arn:aws:sts::1:assumed-role/T/session"


def test_an_identity_that_may_do_it_all(ec2, cloud):
    cloud.denied = set()
    done = ec2("iam", "--check")
    assert done.code == 0, done.err
    assert " 0 lacking, 0 unknown" in done.out
    assert max(map(len, done.out.splitlines())) <= 80


def test_what_is_lacking_is_named_and_the_code_says_whether_it_is_needed(ec2, cloud):
    cloud.denied = {"pricing:GetProducts"}
    done = ec2("iam", "--check")
    assert done.code == 0, done.err
    assert "lacks    pricing:GetProducts" in done.out
    assert "not needed" in done.out
    assert ec2("iam", "--check", "--max-usd", "9").code == 12  # which takes prices
    cloud.denied = {"scheduler:CreateSchedule", "iam:PassRole"}
    assert ec2("iam", "--check").code == 0  # `launch` goes on without ends by AWS
    assert ec2("iam", "--check", "--aws-end", "yes").code == 12
    # One that may be done in some circumstances, and not in all that there are.
    cloud.denied = {"ec2:RunInstances", "ec2:CreateTags ImportKeyPair"}
    done = ec2("iam", "--check", "--json")
    assert done.code == 12
    assert "lacks 5 actions that are needed" in done.err
    lacking = [(one["action"], one["statement"]) for one in done.record["actions"]
               if one["verdict"] == "lacks"]  # fmt: skip
    launches = ["LaunchHosts", "LaunchVolumes", "LaunchFrom", "LaunchInto"]
    assert lacking == [
        *(("ec2:RunInstances", name) for name in launches), ("ec2:CreateTags", "TagNew")
    ]  # fmt: skip
    assert done.record["identity"].endswith(":user/moto")


def test_without_the_simulator_dry_runs_tell_of_what_only_looks(ec2, cloud):
    cloud.on("DescribeVolumes", refusal("UnauthorizedOperation", "You may not"))
    done = ec2("iam", "--check", "--json")
    assert done.code == 12
    verdicts = {one["action"]: one["verdict"] for one in done.record["actions"]}
    assert verdicts["ec2:DescribeVolumes"] == "lacks"
    assert verdicts["ec2:DescribeTags"] == "allowed"
    assert verdicts["ec2:RunInstances"] == "unknown"
    assert "unknown because of iam.simulate_principal_policy: AccessDenied" in done.err
    assert not {"RunInstances", "CreateFleet", "CreateSecurityGroup"} & set(cloud.calls)


@pytest.mark.parametrize(
    ("told", "arn"),
    [(Reply(200, ROLE.encode()), "path/T"), (refusal("AccessDenied"), "T")],
)
def test_a_session_has_the_policies_of_its_role(cloud, told, arn):
    cloud.on("GetRole", told)
    assert principal(Aws("us-east-1"), SESSION) == f"arn:aws:iam::1:role/{arn}"


def test_a_user_is_who_it_is(cloud):
    assert principal(Aws("us-east-1"), "arn:aws:iam::1:user/ana") == "arn:aws:iam::1:user/ana"
    assert not cloud.calls


def test_the_printed_policy_suffices_and_each_statement_of_it_is_missed(ec2, cloud):
    words = ("--supervise", "yes", "--results", "s3://box/x", "--connect", "ssm")
    printed = ec2("iam", "--json", *words).record
    cloud.identity = printed
    done = ec2("iam", "--check", *words, "--json")
    assert done.code == 0, done.err
    assert {one["verdict"] for one in done.record["actions"]} == {"allowed"}
    for removed in ("LaunchHosts", "TagNew", "MoveFuses", "MakeRoles", "ReadResults"):
        rest = [one for one in printed["Statement"] if one["Sid"] != removed]
        cloud.identity = printed | {"Statement": rest}
        done = ec2("iam", "--check", *words, "--json")
        assert done.code == 12
        lacking = {one["statement"] for one in done.record["actions"] if one["verdict"] == "lacks"}
        assert lacking == {removed}


def test_the_policy_is_of_the_commands_and_the_identity_that_are_asked_for(ec2, cloud):
    few = ec2("iam", "--for", "get_hosts, train", "--identity", "arn:aws:iam::7:user/eve")
    assert few.code == 0, few.err
    assert not cloud.calls  # AWS is not asked
    assert "arn:aws:ec2:*:7:*/*" in few.out
    assert '"aws:ResourceTag/atomo:owner": "user/eve"' in few.out
    assert "RunInstances" not in few.out
    unknown = ec2("iam", "--for", "lunch")
    assert unknown.code == 2
    assert "--for lunch: no such command; did you mean 'launch'" in unknown.err
    nothing = ec2("iam", "--for", "init,supervise")
    assert nothing.code == 2
    assert "takes no right of the user" in nothing.err
    mine = ec2("iam", "--for", "shutdown")
    assert "arn:aws:ec2:*:123456789012:*/*" in mine.out
    assert '"aws:ResourceTag/atomo:owner": "user/moto"' in mine.out


def test_without_an_identity_the_policy_says_what_it_does_not_bind(ec2, cloud):
    cloud.on("GetCallerIdentity", refusal("InvalidClientTokenId"), times=9)
    done = ec2("iam", "--for", "shutdown")
    assert done.code == 0
    assert "for any account and any owner: --identity ARN limits it" in done.err
    assert "atomo:owner" not in done.out


def test_the_boundary_is_printed_and_a_launch_without_it_says_so(ec2, cloud):
    words = ("--supervise", "yes", "--master-method", "on-demand")
    assert ec2("iam", "--boundary").code == 2
    assert ec2("iam", "--boundary", *words, "--permissions-boundary", "none").code == 2
    document = ec2("iam", "--boundary", *words, "--json").record
    assert {one["Sid"] for one in document["Statement"]} >= {"LaunchHosts", "End"}
    assert (
        "PERMISSIONS_BOUNDARY IS NONE" in ec2("iam", *words, "--permissions-boundary", "none").err
    )
    large = ec2("iam", *words, "--connect", "ssm", "--image-id", "baked")
    assert "characters: a managed policy takes 6,144" in large.err
    asked = []
    cloud.on("CreateRole", lambda call, forward: asked.append(call) or refusal("NoSuchEntity"))
    done = ec2("launch", "--yes", *words)
    assert done.code == 10
    assert asked[0]["PermissionsBoundary"] == "arn:aws:iam::123456789012:policy/atomo-test-boundary"
    assert "the account has no policy atomo-test-boundary to bound roles with" in done.err
    assert "aws iam create-policy --policy-name atomo-test-boundary" in done.err
    cloud.on("CreateRole", lambda call, forward: asked.append(call))
    assert ec2("launch", "--yes", *words, "--permissions-boundary", "none").code == 0
    assert "PermissionsBoundary" not in asked[1]


def test_a_denied_look_at_roles_is_no_end(ec2, cloud):
    words = ("--supervise", "yes", "--master-method", "on-demand")
    assert ec2("launch", "--yes", *words).code == 0
    denied = refusal("AccessDenied")
    for call in ("GetRole", "GetInstanceProfile"):
        cloud.on(call, denied, times=99)
    done = ec2("shutdown", "--yes", *words)
    assert done.code == 14
    assert "verified" not in done.out
    assert "iam.get_instance_profile: AccessDenied" in done.err
