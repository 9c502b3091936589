"""`kill_python`: ends Python on the cluster's hosts."""

from argparse import ArgumentParser
from collections.abc import Sequence
from typing import Final

from atomo_cluster.ec2.commands.hosts.bootstrap import add_hostfile
from atomo_cluster.ec2.hosts.ssh import Answer, Host
from atomo_cluster.ec2.invocation.run import Run
from atomo_cluster.ec2.jobs.job import KILL, leave_command
from atomo_cluster.ec2.targets.each_host import finish, on_each, show
from atomo_cluster.ec2.targets.selection import cluster_hosts, select

WAIT_S: Final = 300
HELP: Final = """\
  pytorch_ec2.py kill_python
  pytorch_ec2.py kill_python workers
  pytorch_ec2.py kill_python i-0abc,i-0def

Has a training on the master write a checkpoint and end, and waits for it. Then ends every Python of
ssh_username on these hosts: first kindly, and after ten seconds by force."""


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("hosts", metavar="HOSTS", nargs="?", default="all",
                        help="all, master, workers or identifiers (default all)")  # fmt: skip
    add_wait(parser)
    add_hostfile(parser)


def add_wait(parser: ArgumentParser) -> None:
    parser.add_argument("--wait", type=int, default=WAIT_S, metavar="SECONDS",
                        help=f"longest wait for a checkpoint (default {WAIT_S})")  # fmt: skip


def run(run: Run) -> int:
    hosts = cluster_hosts(run)
    answers = end_python(run, hosts, select(hosts, run.options.hosts))
    show(run, answers)
    finish(answers)
    return 0


def end_python(run: Run, hosts: Sequence[Host], chosen: Sequence[Host]) -> list[Answer]:
    """Stops trainings, then ends Python on the chosen hosts.

    The launcher of a training runs on the master, whichever hosts are chosen.
    """
    launching = [host for host in hosts if host.role == "master" or host in chosen]
    for answer in on_each(run, launching, leave_command(run.options.wait)):
        if answer.code:
            run.say(f"{answer.host.name}: {answer.complaint()}; going on")
    return on_each(run, list(chosen), KILL)
