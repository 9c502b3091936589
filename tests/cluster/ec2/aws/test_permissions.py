"""`iam --check` says what of the policy the identity lacks, and what nobody tells."""

import pytest
from cluster.ec2.support.cloud import Reply, refusal

from atomo_cluster.ec2.aws.client import Aws
from atomo_cluster.ec2.aws.permissions import principal

pytestmark = pytest.mark.slow

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
    # One that may be done in some circumstances, and not in all that there are.
    cloud.denied = {"ec2:RunInstances", "ec2:CreateTags CreateFleet"}
    done = ec2("iam", "--check", "--json")
    assert done.code == 12
    assert "lacks 2 actions that are needed" in done.err
    lacking = [(one["action"], one["statement"]) for one in done.record["actions"]
               if one["verdict"] == "lacks"]  # fmt: skip
    assert lacking == [("ec2:RunInstances", "Make"), ("ec2:CreateTags", "TagWhatIsMade")]
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
