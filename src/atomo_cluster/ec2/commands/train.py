"""`train`: the job, on the cluster."""

import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from typing import Final

from atomo_cluster.ec2.commands.bootstrap import add_hostfile
from atomo_cluster.ec2.commands.run_command import finish, on_each
from atomo_cluster.ec2.inventory import instances
from atomo_cluster.ec2.jobs import DETACHED, TAKEN, train_command
from atomo_cluster.ec2.network import find_subnet
from atomo_cluster.ec2.remote import Host
from atomo_cluster.ec2.run import Run
from atomo_cluster.ec2.targets import cluster_hosts, host_keys, reach
from atomo_cluster.errors import NotReady

HELP: Final = """\
  pytorch_ec2.py train -- --network LeNet --dataset MNIST
  pytorch_ec2.py train --detach -- --network ResNet18 --dataset Cifar10 --epochs 30

Runs run_pytorch.sh on the master, over all hosts; what follows `--` are its options. Ctrl-C writes
a checkpoint and ends. Where a training runs already, it is left alone, and this one refused. The
same command continues a run that was cut off: after a spot notice, `launch` and `bootstrap` replace
what AWS took back."""
PASSES_ON: Final = True


def arguments(parser: ArgumentParser) -> None:
    add_hostfile(parser)
    parser.add_argument("--detach", action="store_true",
                        help="leave it running on the master, and return")  # fmt: skip


def run(run: Run) -> int:
    return train(run, cluster_hosts(run), run.options.passed_on, run.options.detach)


def train(run: Run, hosts: list[Host], words: Sequence[str], detach: bool) -> int:
    """Trains on hosts that are set up, and returns the exit code."""
    if run.cluster.pre_commands:
        lines = "\n".join([f"cd {run.cluster.remote_dir}", "set -e", *run.cluster.pre_commands])
        finish(on_each(run, hosts, lines))
    command = train_command(run.cluster, len(hosts), cidr(run), words, detach)
    ssh = reach(run)
    host_keys(run, ssh).pin(hosts[0])
    # Only through a terminal does Ctrl-C reach the job, which then writes a checkpoint.
    line = ssh.words(hosts[0], command, terminal=sys.stdin.isatty() and not detach)
    code = subprocess.call(line, stdout=sys.stderr if run.as_json else None)
    if code == TAKEN:
        raise NotReady(
            f"a training runs already on {hosts[0].alias}: `pytorch_ec2.py ssh -- tail -f "
            f"{run.cluster.remote_dir}/{DETACHED}` follows a detached one, `kill_python` ends it"
        )
    if detach and not code:
        run.say(f"training; `pytorch_ec2.py ssh -- tail -f {run.cluster.remote_dir}/{DETACHED}`")
    run.tell({"exit_code": code, "command": command})
    if code:
        lost(run, hosts)
    return code


def cidr(run: Run) -> str:
    """The addresses that the hosts have among themselves; empty: MPI chooses."""
    if run.options.hostfile:
        return ""
    return find_subnet(run.aws, instances(run.aws, run.owned)[0].subnet, "").cidr


def lost(run: Run, hosts: Sequence[Host]) -> None:
    """Says so where hosts have gone meanwhile."""
    if run.options.hostfile:
        return
    left = {one.id for one in instances(run.aws, run.owned, ["running"])}
    gone = [host for host in hosts if host.id not in left]
    if gone:
        run.say(
            f"{len(gone)} hosts are gone ({', '.join(host.id for host in gone)}); `launch` and "
            "`bootstrap` replace them, and the same `train` continues from the last checkpoint"
        )
