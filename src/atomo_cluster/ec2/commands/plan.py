"""`plan`: what a launch would start and cost."""

from argparse import ArgumentParser
from typing import Final

from atomo_cluster.ec2.network import allowed_cidr
from atomo_cluster.ec2.plan import Plan, make_plan
from atomo_cluster.ec2.plan_text import order_table, plan_lines, plan_record, plan_table
from atomo_cluster.ec2.run import Run

HELP: Final = """\
  pytorch_ec2.py plan
  pytorch_ec2.py plan --n-workers 8 --worker-type g5.xlarge --json

Costs nothing and changes nothing. Prices are AWS's own of this moment; where it does not tell,
they are unknown."""


def arguments(parser: ArgumentParser) -> None:
    """This command has no options of its own."""


def run(run: Run) -> int:
    plan = make_plan(run.aws, run.cluster, run.owned)
    cidr = allowed_cidr(run.cluster)
    present(run, plan, cidr)
    run.tell(plan_record(plan, cidr))
    return 0


def present(run: Run, plan: Plan, cidr: str) -> None:
    """Shows a plan to a person."""
    if not plan.groups:
        run.say(f"{run.cluster.name} is complete: {len(plan.running)} hosts; nothing to launch")
        return
    run.show(plan_table(plan))
    if len(plan.attempts) > 1:
        run.show(order_table(plan))
    for line in plan_lines(plan, cidr):
        run.say(line)
