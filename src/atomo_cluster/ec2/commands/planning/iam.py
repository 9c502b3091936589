"""`iam`: prints the needed permissions, or checks those of the caller."""

import json
import sys
from argparse import ArgumentParser
from dataclasses import asdict
from typing import Final

from atomo_cluster.ec2.aws.permissions import ALLOWED, LACKS, UNKNOWN, Permission, permissions
from atomo_cluster.ec2.aws.policy import policy
from atomo_cluster.ec2.invocation.run import Run
from atomo_cluster.errors import NotReady

HELP: Final = """\
  pytorch_ec2.py iam
  pytorch_ec2.py iam > policy.json
  pytorch_ec2.py iam --check

Prints the policy as IAM takes it, with or without --json, and asks AWS nothing. What is ended must
carry the tag of a cluster; the last statement's actions tell more and are not needed.

With --check: which of it the present identity lacks, as IAM's policy simulator says; it ends with
12 if something is lacking that is needed. Where the identity may not ask the simulator, EC2's
DryRun tells of what only looks, and the rest is unknown. Nothing is made, changed or ended."""


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--check", action="store_true",
                        help="say what the present identity lacks")  # fmt: skip


def run(run: Run) -> int:
    if run.options.check:
        return check(run)
    if run.as_json:
        run.tell(policy())
    else:
        sys.stdout.write(json.dumps(policy(), indent=2) + "\n")
    return 0


def check(run: Run) -> int:
    """Reports missing and unknown permissions."""
    arn = str(run.aws.call("sts.get_caller_identity")["Arn"])
    found = permissions(run.aws, arn, run.cluster.name)
    counts = {one: sum(had.verdict == one for had in found) for one in (ALLOWED, LACKS, UNKNOWN)}
    for had in found:
        if had.verdict != ALLOWED:
            run.say(line(had))
    for why in sorted({had.why for had in found if had.verdict == UNKNOWN}):
        run.say(f"unknown because of {why}")
    run.say(arn)
    run.say(f"{counts[ALLOWED]} allowed, {counts[LACKS]} lacking, {counts[UNKNOWN]} unknown")
    run.tell({"identity": arn, "actions": [asdict(had) for had in found]})
    lacking = [had for had in found if had.verdict == LACKS and had.needed]
    if lacking:
        raise NotReady(
            f"the identity lacks {len(lacking)} actions that are needed; `pytorch_ec2.py iam` "
            "prints the policy that allows them"
        )
    return 0


def line(had: Permission) -> str:
    """Formats an action that is missing or unknown."""
    return f"{had.verdict:8} {had.action:42} {'' if had.needed else 'not needed'}".rstrip()
