"""`plan`: shows the hosts and the cost of a launch."""

from argparse import ArgumentParser
from collections.abc import Sequence
from typing import Final

from atomo_cluster.ec2.invocation.run import Run
from atomo_cluster.ec2.launch.offers import Offer, offers, offers_record, offers_table
from atomo_cluster.ec2.launch.plan import Plan
from atomo_cluster.ec2.launch.plan_text import order_table, plan_lines, plan_record, plan_table
from atomo_cluster.ec2.places.aws_ends import end_lines
from atomo_cluster.ec2.places.network import allowed_cidr

HELP: Final = """\
  pytorch_ec2.py plan
  pytorch_ec2.py plan --n-workers 8 --worker-type g5.xlarge --json

Costs nothing and changes nothing. Prices are AWS's own of this moment; where it does not tell,
they are unknown."""


def arguments(parser: ArgumentParser) -> None:
    """Adds no options."""


def run(run: Run) -> int:
    listed = offers(run)
    cidr = allowed_cidr(run.given)
    show(run, listed, cidr)
    run.tell({**plan_record(listed[0].plan, cidr), "regions": offers_record(listed)})
    return 0


def show(run: Run, listed: Sequence[Offer], cidr: str) -> None:
    """Shows the first plan and, if there are several, the order of the regions."""
    present(listed[0].run, listed[0].plan, cidr)
    if len(listed) > 1:
        run.show(offers_table(listed))


def present(run: Run, plan: Plan, cidr: str) -> None:
    """Shows a plan."""
    if not plan.groups:
        run.say(f"{run.cluster.name} is complete: {len(plan.running)} hosts; nothing to launch")
        return
    run.show(plan_table(plan))
    if len(plan.attempts) > 1:
        run.show(order_table(plan))
    for line in plan_lines(plan, cidr, end_lines(run.aws, run.cluster, run.owned)):
        run.say(line)
