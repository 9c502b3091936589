"""`ssh`: opens a shell on a host."""

import subprocess
import sys
from argparse import ArgumentParser
from typing import Final

from atomo_cluster.ec2.commands.hosts.bootstrap import add_hostfile
from atomo_cluster.ec2.invocation.run import Run
from atomo_cluster.ec2.targets.selection import cluster_hosts, host_keys, select, ssh_of
from atomo_cluster.errors import ConfigError

HELP: Final = """\
  pytorch_ec2.py ssh
  pytorch_ec2.py ssh deeplearning-worker2
  pytorch_ec2.py ssh i-0abc -- nvidia-smi

To the master, unless another host is named. Host keys are pinned as in `bootstrap`."""
PASSES_ON: Final = True


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("host", metavar="HOST", nargs="?", default="master",
                        help="identifier or alias (default master)")  # fmt: skip
    add_hostfile(parser)


def run(run: Run) -> int:
    """Runs ssh and returns its exit code."""
    chosen = select(cluster_hosts(run), run.options.host)
    if len(chosen) != 1:
        raise ConfigError(f"{run.options.host} is {len(chosen)} hosts; name one")
    ssh, words = ssh_of(run), run.options.passed_on
    host_keys(run, ssh).pin(chosen[0])
    line = ssh.words(chosen[0], *words, terminal=not words)
    # unbounded: a shell lasts as long as its user wants
    code = subprocess.call(line, stdout=sys.stderr if run.as_json else None)
    run.tell({"exit_code": code})
    return code
