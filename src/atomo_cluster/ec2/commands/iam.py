"""`iam`: what the identity must be allowed."""

import json
import sys
from argparse import ArgumentParser
from typing import Final

from atomo_cluster.ec2.policy import policy
from atomo_cluster.ec2.run import Run

HELP: Final = """\
  pytorch_ec2.py iam
  pytorch_ec2.py iam > policy.json

Prints the policy as IAM takes it, with or without --json, and asks AWS nothing. What is ended must
carry the tag of a cluster; the last statement's actions tell more and are not needed."""


def arguments(parser: ArgumentParser) -> None:
    """This command has no options of its own."""


def run(run: Run) -> int:
    if run.as_json:
        run.tell(policy())
    else:
        sys.stdout.write(json.dumps(policy(), indent=2) + "\n")
    return 0
