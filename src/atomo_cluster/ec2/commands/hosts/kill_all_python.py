"""`kill_all_python`: ends Python on the hosts of all clusters of the owner."""

from argparse import ArgumentParser
from typing import Final

from atomo_cluster.ec2.commands.hosts.kill_python import add_wait, end_python
from atomo_cluster.ec2.invocation.run import Run
from atomo_cluster.ec2.targets.each_host import finish, show
from atomo_cluster.ec2.targets.selection import owners_hosts

HELP: Final = """\
  pytorch_ec2.py kill_all_python
  pytorch_ec2.py kill_all_python --yes --json

Like kill_python, on the hosts of every cluster that you own in the region, so it asks first."""


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="do not ask")
    add_wait(parser)
    parser.set_defaults(hostfile=None)


def run(run: Run) -> int:
    hosts = owners_hosts(run)
    run.say(f"{len(hosts)} hosts of {run.owned.owner} in {run.aws.region}")
    if hosts:
        run.confirm("End Python on all of them?")
    answers = end_python(run, hosts, hosts)
    show(run, answers)
    finish(answers)
    return 0
