"""`iam`: prints the needed permissions, or checks those of the caller."""

import json
import sys
from argparse import ArgumentParser
from dataclasses import asdict
from typing import Final

from atomo_cluster.ec2.aws.master_policy import boundary
from atomo_cluster.ec2.aws.permissions import ALLOWED, LACKS, UNKNOWN, Permission, permissions
from atomo_cluster.ec2.aws.policy import COMMANDS, policy, used_commands
from atomo_cluster.ec2.aws.policy_scope import PolicyScope, scope_of
from atomo_cluster.ec2.invocation.run import Run
from atomo_cluster.ec2.settings.terms import split_commas
from atomo_cluster.errors import CloudError, ConfigError, NotReady
from atomo_cluster.names import nearest

HELP: Final = """\
  pytorch_ec2.py iam
  pytorch_ec2.py iam --for launch,bootstrap,train,shutdown > policy.json
  pytorch_ec2.py iam --identity arn:aws:iam::123456789012:user/ana
  pytorch_ec2.py iam --boundary --supervise yes
  pytorch_ec2.py iam --check

Prints the least policy for these settings as IAM takes it, with or without --json: for all
commands, or for those of --for. `bake` and `delete_images` are among them with image_id baked. Its
statements hold for this cluster's name and owner, in its regions and in one account: those of
--identity, or of the present identity, which STS tells to everybody. Print it again when settings
change.

--boundary prints the policy that bounds the roles of supervise and of connect: ssm. An
administrator makes it once, with the name that permissions_boundary says; no role of the cluster
can do more.

With --check: which of the policy the identity lacks, as IAM's policy simulator says; it ends with
12 if something is lacking that is needed. Where the identity may not ask the simulator, EC2's
DryRun tells of what only looks, and the rest is unknown. Nothing is made, changed or ended."""

MANAGED: Final = 6144  # characters without spaces that a managed policy takes


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


def run(run: Run) -> int:
    if run.options.check:
        return check(run)
    scope = scope_for(run)
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
    size = len(json.dumps(document, separators=(",", ":")))
    texts = []
    if size > MANAGED:
        texts.append(
            f"{size:,} characters: a managed policy takes {MANAGED:,}, so print parts of it with "
            "--for and attach each; a role's inline policy takes 10,240"
        )
    if (scope.cluster.makes_roles or scope.cluster.aws_end) and not scope.boundary:
        texts.append(
            "PERMISSIONS_BOUNDARY IS NONE: whoever has this policy can give the cluster's roles "
            "any right, an administrator's too; leave it empty, or name one"
        )
    return texts


def least(run: Run, scope: PolicyScope) -> dict[str, object]:
    """Returns the least policy.

    Raises:
        ConfigError: the commands call nothing that takes a right.
    """
    document = policy(scope, commands(run, scope))
    if not document["Statement"]:
        raise ConfigError(f"--for {run.options.for_commands}: this takes no right of the user")
    return document


def bounding(scope: PolicyScope) -> dict[str, object]:
    """Returns the boundary.

    Raises:
        ConfigError: the settings make no role, or none with a boundary.
    """
    if not (scope.cluster.makes_roles or scope.cluster.aws_end):
        raise ConfigError(
            "--boundary: roles are made with supervise: yes, connect: ssm or aws_end: yes alone"
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
        if name not in COMMANDS:
            raise ConfigError(f"--for {name}: no such command; {nearest(name, COMMANDS)}")
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
    results = permissions(aws, arn, policy(scope, commands(run, scope)), scope.cluster.max_usd)
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
