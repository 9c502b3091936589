"""The policies of the user and of the master: what they allow, and what they do not."""

import pytest
from cluster.ec2.support.iam_policy import ALLOWED, EXPLICIT, IMPLICIT, Request, decision

from atomo_cluster.ec2.aws.master_policy import boundary, master_policy
from atomo_cluster.ec2.aws.policy import policy, used_commands
from atomo_cluster.ec2.aws.policy_scope import PolicyScope, scope_of
from atomo_cluster.ec2.commands.planning.policy_size import MANAGED, compact, parts, size
from atomo_cluster.ec2.settings.cluster import Cluster

ANA = "arn:aws:iam::123456789012:user/ana"
HERE = {"aws:RequestedRegion": ["us-east-1"]}
OURS = {"atomo:cluster": "lab", "atomo:owner": "user/ana"}
NEW = {f"aws:RequestTag/{key}": [value] for key, value in OURS.items()} | HERE
OLD = {f"aws:ResourceTag/{key}": [value] for key, value in OURS.items()} | HERE
THEIRS = OLD | {"aws:ResourceTag/atomo:owner": ["user/bob"]}
BOUND = "arn:aws:iam::123456789012:policy/atomo-lab-boundary"
SUPERVISED = {"supervise": True, "results": "s3://box/runs/x", "worker_method": "spot"}


def scope(**settings):
    return scope_of(Cluster(name="lab", **settings), ANA)


def ec2(kind, account="123456789012", region="us-east-1"):
    return f"arn:aws:ec2:{region}:{account}:{kind}/x-1"


def users(**settings):
    place = scope(**settings)
    return policy(place, used_commands(place))


def allowed(document, action, resource="*", context=HERE, bound=None):
    return decision([document], Request(action, resource, context), bound) == ALLOWED


@pytest.mark.slow
def test_statements_that_merge_allow_what_they_allowed_and_nothing_else():
    for place in (scope(), scope(connect="ssm", placement_group=True, efa=True, **SUPERVISED)):
        document = policy(place, used_commands(place))
        short = compact(document)
        assert len(short["Statement"]) < len(document["Statement"])
        kinds = ("instance", "security-group", "volume", "fleet", "key-pair", "subnet", "image")
        resources = ["*", *map(ec2, kinds), *place.iam((*place.master_roles, *place.end_roles),
                                                       "role")]  # fmt: skip
        for action in sorted(actions(document)):
            for resource in resources:
                for context in (HERE, NEW, OLD, THEIRS, {}):
                    question = (action, resource, context)
                    assert allowed(short, *question) is allowed(document, *question), question


def test_a_long_policy_is_printed_in_parts_that_fit():
    place = scope(connect="ssm", placement_group=True, **SUPERVISED)
    document = compact(policy(place, used_commands(place)))
    listed = parts(document)
    assert size(document) > MANAGED
    assert all(size(part) <= MANAGED for part in listed)
    assert [one for part in listed for one in part["Statement"]] == document["Statement"]
    assert parts(compact(users())) == [compact(users())]


def actions(document):
    return {action for one in document["Statement"] for action in one["Action"]}


def test_rights_without_use_are_not_in_the_policy():
    plain = actions(users(method="on-demand"))
    assert not {one for one in plain if one.startswith(("s3:", "fsx:", "elasticfilesystem:"))}
    assert {one for one in plain if one.startswith("iam:")} == {
        "iam:GetRole", "iam:SimulatePrincipalPolicy",  # of `iam --check`
        "iam:GetRolePolicy", "iam:PassRole",  # of the role with which AWS ends hosts
    }  # fmt: skip
    unused = {"ssm:StartSession", "ec2:CreateFleet", "ec2:CreateImage", "ec2:CreatePlacementGroup",
              "ec2:AuthorizeSecurityGroupEgress", "iam:CreateServiceLinkedRole"}  # fmt: skip
    assert not unused & plain
    assert not any("*" in one for one in plain)
    used = users(connect="ssm", efa=True, placement_group=True, image_id="baked", **SUPERVISED)
    assert unused <= actions(used)


def test_for_some_commands_the_policy_has_less():
    looks = policy(scope(aws_end="no"), ["status"])
    assert actions(looks) <= {one for one in actions(users()) if one.startswith("ec2:Describe")}
    assert "ec2:RunInstances" not in actions(policy(scope(), ["train", "shutdown"]))


def test_what_is_changed_or_ended_carries_cluster_and_owner():
    document = users()
    for action, kind in (("TerminateInstances", "instance"), ("StopInstances", "instance"),
                         ("DeleteVolume", "volume"), ("DeleteFleets", "fleet"),
                         ("AuthorizeSecurityGroupIngress", "security-group"),
                         ("RevokeSecurityGroupIngress", "security-group"),
                         ("GetConsoleOutput", "instance")):  # fmt: skip
        assert allowed(document, f"ec2:{action}", ec2(kind), OLD), action
        assert not allowed(document, f"ec2:{action}", ec2(kind), THEIRS), action
        assert not allowed(document, f"ec2:{action}", ec2(kind)), action
        assert not allowed(document, f"ec2:{action}", ec2(kind, account="9"), OLD), action
        elsewhere = OLD | {"aws:RequestedRegion": ["us-west-2"]}
        assert not allowed(document, f"ec2:{action}", ec2(kind), elsewhere), action


def test_the_policy_holds_in_the_regions_of_the_settings():
    document = users(regions="us-east-1,eu-west-1")
    for region, may in (("us-east-1", True), ("eu-west-1", True), ("us-west-2", False)):
        there = OLD | {"aws:RequestedRegion": [region]}
        host = ec2("instance", region=region)
        assert allowed(document, "ec2:TerminateInstances", host, there) is may
        assert allowed(document, "ec2:DescribeInstances", "*", there) is may
    assert ":aws-cn:" in str(users(region="cn-north-1"))


def test_hosts_are_launched_with_tags_and_of_the_types_of_the_settings():
    document, types = users(alternative_types="m5a.large"), {"ec2:InstanceType": ["m5a.large"]}
    assert allowed(document, "ec2:RunInstances", ec2("instance"), NEW | types)
    assert not allowed(document, "ec2:RunInstances", ec2("instance"), HERE | types)
    assert not allowed(document, "ec2:RunInstances", ec2("instance"),
                       NEW | {"ec2:InstanceType": ["p5.48xlarge"]})  # fmt: skip
    assert not allowed(document, "ec2:RunInstances", ec2("security-group"), THEIRS)


def test_tags_of_what_exists_stay_but_for_the_fuse():
    document = users()
    fuse = OLD | {"aws:TagKeys": ["atomo:max-hours"]}
    assert allowed(document, "ec2:CreateTags", ec2("instance"), fuse)
    for context in (OLD, THEIRS | fuse | THEIRS, OLD | {"aws:TagKeys": ["atomo:cluster"]}, NEW):
        assert not allowed(document, "ec2:CreateTags", ec2("instance"), context)
    assert allowed(document, "ec2:CreateTags", ec2("instance"),
                   NEW | {"ec2:CreateAction": ["RunInstances"]})  # fmt: skip


def test_roles_are_made_within_the_boundary_and_passed_to_hosts_alone():
    document, place = users(connect="ssm", **SUPERVISED), scope(connect="ssm", **SUPERVISED)
    role = f"arn:aws:iam::123456789012:role/{place.master_roles[0]}"
    bound = {"iam:PermissionsBoundary": [BOUND]}
    core = {"iam:PolicyARN": ["arn:aws:iam::aws:policy/AmazonSSMManagedInstanceCore"]}
    for action, context in (("CreateRole", bound), ("PutRolePolicy", bound),
                            ("AttachRolePolicy", bound | core)):  # fmt: skip
        assert allowed(document, f"iam:{action}", role, context)
        assert not allowed(document, f"iam:{action}", role, core)
        assert not allowed(document, f"iam:{action}", f"{role}x", context)
    admin = bound | {"iam:PolicyARN": ["arn:aws:iam::aws:policy/AdministratorAccess"]}
    assert not allowed(document, "iam:AttachRolePolicy", role, admin)
    assert allowed(document, "iam:PassRole", role, {"iam:PassedToService": ["ec2.amazonaws.com"]})
    assert not allowed(
        document, "iam:PassRole", role, {"iam:PassedToService": ["lambda.amazonaws.com"]}
    )
    assert not allowed(document, "iam:DeleteRolePermissionsBoundary", role, bound)


def test_results_are_read_below_their_prefix():
    document = users(**SUPERVISED)
    assert allowed(document, "s3:GetObject", "arn:aws:s3:::box/runs/x/model", {})
    assert not allowed(document, "s3:GetObject", "arn:aws:s3:::box/runs/y", {})
    assert not allowed(document, "s3:PutObject", "arn:aws:s3:::box/runs/x/model", {})
    assert allowed(document, "s3:ListBucket", "arn:aws:s3:::box", {"s3:prefix": ["runs/x/"]})
    assert not allowed(document, "s3:ListBucket", "arn:aws:s3:::box", {"s3:prefix": [""]})


def test_a_session_is_for_ssh_to_hosts_of_the_cluster():
    document = users(connect="ssm")
    checked = HERE | {"ssm:SessionDocumentAccessCheck": ["true"]}
    tags = {f"ssm:resourceTag/{key}": [value] for key, value in OURS.items()}
    assert allowed(document, "ssm:StartSession", ec2("instance"), checked | tags)
    assert not allowed(document, "ssm:StartSession", ec2("instance"), checked)
    document_arn = "arn:aws:ssm:us-east-1::document/"
    assert allowed(document, "ssm:StartSession", f"{document_arn}AWS-StartSSHSession")
    assert not allowed(document, "ssm:StartSession", f"{document_arn}SSM-SessionManagerRunShell")


@pytest.mark.parametrize(
    ("action", "kind", "context", "may"),
    [
        ("RunInstances", "instance", NEW | {"ec2:InstanceType": ["m5.large"],
                                            "aws:RequestTag/atomo:role": ["worker"]}, True),
        ("RunInstances", "instance", NEW | {"ec2:InstanceType": ["m5.large"],
                                            "aws:RequestTag/atomo:role": ["master"]}, False),
        ("RunInstances", "instance", NEW | {"ec2:InstanceType": ["p5.48xlarge"],
                                            "aws:RequestTag/atomo:role": ["worker"]}, False),
        ("RunInstances", "instance", HERE | {"ec2:InstanceType": ["m5.large"]}, False),
        ("RunInstances", "volume", NEW | {"ec2:VolumeSize": ["200"],
                                          "ec2:Encrypted": ["true"]}, True),
        ("RunInstances", "volume", NEW | {"ec2:VolumeSize": ["2000"],
                                          "ec2:Encrypted": ["true"]}, False),
        ("CreateFleet", "launch-template", OLD, True),
        ("CreateFleet", "launch-template", THEIRS, False),
        ("TerminateInstances", "instance", OLD, True),
        ("TerminateInstances", "instance", THEIRS, False),
        ("TerminateInstances", "instance", HERE, False),
        ("DeleteVolume", "volume", THEIRS, False),
        ("CreateTags", "instance", OLD | NEW, False),
        ("DeleteSecurityGroup", "security-group", OLD, False),
        ("AuthorizeSecurityGroupIngress", "security-group", OLD, False),
        ("GetConsoleOutput", "instance", THEIRS, False),
    ],
)  # fmt: skip
def test_the_master_launches_and_ends_workers_of_its_cluster_alone(action, kind, context, may):
    place = scope(**SUPERVISED)
    document = master_policy(place)
    assert allowed(document, f"ec2:{action}", ec2(kind), context, boundary(place)) is may


def test_the_boundary_limits_whatever_somebody_gives_a_role():
    everything = {"Version": "2012-10-17", "Statement": [
        {"Effect": "Allow", "Action": "*", "Resource": "*"}]}  # fmt: skip
    bound = boundary(scope(**SUPERVISED))
    assert not allowed(everything, "iam:CreateUser", "*", HERE, bound)
    assert not allowed(everything, "ec2:TerminateInstances", ec2("instance"), HERE, bound)
    assert not allowed(everything, "s3:GetObject", "arn:aws:s3:::other/x", {}, bound)
    sessions = boundary(scope(connect="ssm"))
    assert allowed(everything, "ssmmessages:OpenDataChannel", "*", HERE, sessions)
    assert not allowed(everything, "ec2:RunInstances", ec2("instance"), NEW, sessions)


def test_policies_fit_where_they_go():
    assert size(compact(users())) <= MANAGED
    full = scope(connect="ssm", placement_group=True, efa=True, storage="fsx:fs-01234567",
                 **SUPERVISED)  # fmt: skip
    assert size(boundary(full)) <= MANAGED
    assert size(master_policy(full)) <= 10_240  # a role's own


@pytest.mark.parametrize(
    ("arn", "names"),
    [
        (ANA, ["user/ana"]),
        ("arn:aws:sts::123456789012:assumed-role/Trainer/x", ["role/Trainer", "role/*/Trainer"]),
    ],
)
def test_the_simulator_is_asked_about_the_identity_alone(arn, names):
    (statement,) = policy(scope_of(Cluster(), arn), ["iam"])["Statement"]
    assert statement["Resource"] == [f"arn:aws:iam::123456789012:{name}" for name in names]


def test_without_an_account_or_an_owner_the_cluster_still_binds():
    document = policy(PolicyScope(Cluster(name="lab")), ["shutdown"])
    assert allowed(document, "ec2:TerminateInstances", ec2("instance"), THEIRS)
    other = THEIRS | {"aws:ResourceTag/atomo:cluster": ["other"]}
    assert not allowed(document, "ec2:TerminateInstances", ec2("instance"), other)


def statement(**elements):
    one = {"Effect": "Allow", "Action": "ec2:*", "Resource": "*", **elements}
    return {"Version": "2012-10-17", "Statement": one}


@pytest.mark.parametrize(
    ("condition", "context", "holds"),
    [
        ({"StringEquals": {"k": ["a", "b"]}}, {"k": ["b"]}, True),
        ({"StringEquals": {"k": "a", "l": "b"}}, {"k": ["a"]}, False),
        ({"StringEqualsIfExists": {"k": "a"}}, {}, True),
        ({"StringNotEquals": {"k": ["a", "b"]}}, {"k": ["b"]}, False),
        ({"StringNotEquals": {"k": "a"}}, {}, True),
        ({"StringLike": {"k": "a*c?"}}, {"k": ["abbcd"]}, True),
        ({"ArnLike": {"k": "arn:aws:iam::*:role/x-*"}}, {"k": ["arn:aws:iam::1:role/x-2"]}, True),
        ({"ArnLike": {"k": "arn:aws:iam::*"}}, {"k": ["arn:aws:iam::1:role/x-2"]}, False),
        ({"NumericLessThanEquals": {"k": "10"}}, {"k": ["9"]}, True),
        ({"NumericLessThanEquals": {"k": "10"}}, {"k": ["11"]}, False),
        ({"Null": {"k": "true"}}, {}, True),
        ({"Null": {"k": "false"}}, {}, False),
        ({"Bool": {"k": "true"}}, {"k": ["TRUE"]}, True),
        ({"ForAllValues:StringEquals": {"k": ["a", "b"]}}, {"k": ["a", "b"]}, True),
        ({"ForAllValues:StringEquals": {"k": ["a"]}}, {"k": ["a", "b"]}, False),
        ({"ForAllValues:StringEquals": {"k": ["a"]}}, {}, True),
        ({"ForAnyValue:StringEquals": {"k": ["a"]}}, {"k": ["a", "b"]}, True),
        ({"StringEquals": {"k": "${l}-x"}}, {"k": ["a-x"], "l": ["a"]}, True),
        ({"StringEquals": {"k": "${l}-x"}}, {"k": ["a-x"]}, False),
    ],
)
def test_conditions_hold_as_iam_has_them(condition, context, holds):
    decided = decision([statement(Condition=condition)], Request("ec2:Run", "*", context))
    assert decided == (ALLOWED if holds else IMPLICIT)


def test_a_deny_wins_and_what_is_not_known_is_an_error():
    deny = statement(Effect="Deny", Action="ec2:Terminate*")
    request = Request("ec2:TerminateInstances", "x")
    assert decision([statement(), deny], request) == EXPLICIT
    assert decision([statement(NotResource="y")], request) == ALLOWED
    assert decision([statement()], Request("EC2:run", "x")) == ALLOWED
    with pytest.raises(ValueError, match="unknown operator 'IpAddress'"):
        decision(
            [statement(Condition={"IpAddress": {"k": "1"}})], Request("ec2:a", "x", {"k": ["1"]})
        )
    with pytest.raises(ValueError, match="unknown elements"):
        decision([statement(Principal="*")], request)
