"""`kill_python`: the end of Python on the cluster's hosts."""

from argparse import ArgumentParser
from typing import Final

from atomo_cluster.ec2.commands.bootstrap import add_hostfile
from atomo_cluster.ec2.commands.run_command import finish, on_each, show
from atomo_cluster.ec2.jobs import KILL
from atomo_cluster.ec2.run import Run
from atomo_cluster.ec2.targets import cluster_hosts, select

HELP: Final = """\
  pytorch_ec2.py kill_python
  pytorch_ec2.py kill_python workers
  pytorch_ec2.py kill_python i-0abc,i-0def

Ends every Python of ssh_username on these hosts: first kindly, so that a training writes a
checkpoint, and after ten seconds by force."""


def arguments(parser: ArgumentParser) -> None:
    """Adds the options of this command."""
    parser.add_argument("hosts", metavar="HOSTS", nargs="?", default="all",
                        help="all, master, workers or identifiers (default all)")  # fmt: skip
    add_hostfile(parser)


def run(run: Run) -> int:
    """Ends Python."""
    answers = on_each(run, select(cluster_hosts(run), run.options.hosts), KILL)
    show(run, answers)
    finish(answers)
    return 0
