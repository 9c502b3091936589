"""`iam`: prints the needed permissions, or checks those of the caller."""

import json
import sys
from argparse import ArgumentParser
from dataclasses import asdict
from typing import Final

from atomo_cluster.arguments import CONVERTERS
from atomo_cluster.ec2.aws.master_policy import boundary
from atomo_cluster.ec2.aws.permissions import ALLOWED, LACKS, UNKNOWN, Permission, permissions
from atomo_cluster.ec2.aws.policy import USES, policy, used_commands
from atomo_cluster.ec2.aws.policy_scope import PolicyScope, scope_of
from atomo_cluster.ec2.commands.planning.policy_size import MANAGED, compact, parts, size
from atomo_cluster.ec2.invocation.run import Run
from atomo_cluster.ec2.places.end_role import end_role_commands
from atomo_cluster.ec2.settings.terms import YES, split_commas
from atomo_cluster.errors import CloudError, ConfigError, NotReady
from atomo_cluster.names import nearest

HELP: Final = """\
  pytorch_ec2.py iam
  pytorch_ec2.py iam --for launch,bootstrap,train,shutdown > policy.json
  pytorch_ec2.py iam --identity arn:aws:iam::123456789012:user/ana
  pytorch_ec2.py iam --boundary --supervise yes
  pytorch_ec2.py iam --end-role --identity arn:aws:iam::123456789012:user/ana
  pytorch_ec2.py iam --check

Prints the least policy for these settings as IAM takes it, with or without --json: for all
commands, or for those of --for. `bake` and `delete_images` are among them with image_id baked. Its
statements hold for this cluster's name and owner, in its regions and in one account: those of
--identity, or of the present identity, which STS tells to everybody. Print it again when settings
change. `status --all-regions` looks beyond these regions: --for 'status --all-regions' prints its
rights.

Statements that differ in their actions alone are one; a policy that is too long for a managed
policy is printed in parts by --part 1, --part 2 and so on, and the identity gets all of them.

--boundary prints the policy that bounds the roles of supervise and of connect: ssm. An
administrator makes it once, with the name that permissions_boundary says; no role of the cluster
can do more.

--end-role prints the commands of AWS's CLI that make the role with which AWS ends hosts 15 minutes
after their fuses (aws_end): it ends what carries the tags of cluster and owner, and nothing else.
An administrator runs them once; where `launch` may make roles it does so itself.

With --check: which of the policy the identity lacks, as IAM's policy simulator says; it ends with
12 if something is lacking that is needed. Where the identity may not ask the simulator, EC2's
DryRun tells of what only looks, and the rest is unknown. Nothing is made, changed or ended."""


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--for",
        dest="for_commands",
        metavar="COMMANDS",
        help="commands, with commas (default: all that the settings use)",
    )
    parser.add_argument(
        "--identity",
        metavar="ARN",
        help="user or role that gets the policy (default: the present one)",
    )
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--check", action="store_true", help="say what the identity lacks")
    shown.add_argument("--boundary", action="store_true",
                       help="print the boundary of the cluster's roles")  # fmt: skip
    shown.add_argument("--end-role", action="store_true",
                       help="print the commands that make the role with which AWS ends "
                       "hosts")  # fmt: skip
    shown.add_argument("--part", type=CONVERTERS[int], metavar="N",
                       help="print one of the policies that fit into managed ones")  # fmt: skip


def run(run: Run) -> int:
    if run.options.check:
        return check(run)
    scope = scope_for(run)
    if run.options.end_role:
        return show_end_role(run, scope)
    document = bounding(scope) if run.options.boundary else least(run, scope)
    if run.as_json:
        run.tell(document)
    else:
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    for warning in warnings(scope, document):
        sys.stderr.write(f"{warning}\n")
    return 0


def warnings(scope: PolicyScope, document: dict[str, object]) -> list[str]:
    """Lists what to know before the document is given to IAM."""
    texts = []
    if size(document) > MANAGED:
        count = len(parts(document))
        texts.append(
            f"{size(document):,} characters: a managed policy takes {MANAGED:,}, so print it with "
            f"--part 1 to --part {count} and attach each; a role's inline policy takes 10,240"
        )
    if scope.cluster.makes_roles and not scope.boundary:
        texts.append(
            "PERMISSIONS_BOUNDARY IS NONE: whoever has this policy can give the cluster's roles "
            "any right, an administrator's too; leave it empty, or name one"
        )
    return texts


def least(run: Run, scope: PolicyScope) -> dict[str, object]:
    """Returns the least policy, or a part of it.

    Raises:
        ConfigError: the commands call nothing that takes a right, or there is no such part.
    """
    document = compact(policy(scope, commands(run, scope)))
    if not document["Statement"]:
        raise ConfigError(f"--for {run.options.for_commands}: this takes no right of the user")
    number: int | None = run.options.part
    if number is None:
        return document
    listed = parts(document)
    if not 1 <= number <= len(listed):
        raise ConfigError(f"--part must be from 1 to {len(listed)}, got {number}")
    return listed[number - 1]


def show_end_role(run: Run, scope: PolicyScope) -> int:
    """Prints the commands that make the end roles.

    Raises:
        ConfigError: AWS ends no hosts by these settings, or account or owner are unknown.
    """
    if not scope.cluster.aws_ends:
        raise ConfigError("--end-role: aws_end is no, and AWS ends no hosts")
    if scope.account == "*" or not scope.owner:
        raise ConfigError("--end-role: account and owner are unknown; --identity ARN says both")
    lines = end_role_commands(scope)
    if run.as_json:
        run.tell({"commands": lines})
    else:
        sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 0


def bounding(scope: PolicyScope) -> dict[str, object]:
    """Returns the boundary.

    Raises:
        ConfigError: the settings make no role, or none with a boundary.
    """
    if not (scope.cluster.makes_roles or scope.end_boundary):
        raise ConfigError(
            "--boundary: roles are made with supervise: yes or connect: ssm alone; for the role "
            "with which AWS ends hosts permissions_boundary names one"
        )
    if not scope.boundary:
        raise ConfigError("--boundary: permissions_boundary is none; leave it empty, or name one")
    return boundary(scope)


def commands(run: Run, scope: PolicyScope) -> list[str]:
    """Returns the commands of --for, or all that the settings use.

    Raises:
        ConfigError: one of them does not exist.
    """
    named = split_commas(run.options.for_commands or "")
    for name in named:
        if name not in USES:
            raise ConfigError(f"--for {name}: no such command; {nearest(name, USES)}")
    return list(named) or used_commands(scope)


def scope_for(run: Run) -> PolicyScope:
    """Returns the scope of --identity, or of the caller; without either, of any account."""
    cluster = run.given
    if run.options.identity:
        return scope_of(cluster, run.options.identity)
    try:
        return scope_of(cluster, caller_arn(run))
    except CloudError as error:
        sys.stderr.write(
            f"for any account{'' if cluster.owner else ' and any owner'}: --identity ARN limits it "
            f"({error})\n"
        )
        return PolicyScope(cluster, owner=cluster.owner)


def caller_arn(run: Run) -> str:
    """Returns the ARN of the caller."""
    return str(run.accepted()[0].aws.call("sts.get_caller_identity")["Arn"])


def check(run: Run) -> int:
    """Reports missing and unknown permissions."""
    arn = run.options.identity or caller_arn(run)
    scope = scope_of(run.given, arn)
    aws = run.accepted()[0].aws
    results = permissions(
        aws, arn, policy(scope, commands(run, scope)), scope.cluster.max_usd,
        ends_needed=scope.cluster.aws_end == YES,
    )  # fmt: skip
    counts = {
        word: sum(permission.verdict == word for permission in results)
        for word in (ALLOWED, LACKS, UNKNOWN)
    }
    for permission in results:
        if permission.verdict != ALLOWED:
            run.say(line(permission))
    for why in sorted({permission.why for permission in results if permission.verdict == UNKNOWN}):
        run.say(f"unknown because of {why}")
    run.say(arn)
    run.say(f"{counts[ALLOWED]} allowed, {counts[LACKS]} lacking, {counts[UNKNOWN]} unknown")
    run.tell({"identity": arn, "actions": [asdict(permission) for permission in results]})
    lacking = [
        permission for permission in results if permission.verdict == LACKS and permission.needed
    ]
    if lacking:
        raise NotReady(
            f"the identity lacks {len(lacking)} actions that are needed; `pytorch_ec2.py iam` "
            "prints the policy that allows them"
        )
    return 0


def line(permission: Permission) -> str:
    """Formats an action that is missing or unknown."""
    needed = "" if permission.needed else "not needed"
    return (
        f"{permission.verdict:8} {permission.action:42} {permission.statement:20} {needed}".rstrip()
    )
