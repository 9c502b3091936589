"""`run_command`: runs a shell command on hosts."""

from argparse import ArgumentParser
from typing import Final

from atomo_cluster.ec2.commands.hosts.bootstrap import add_hostfile
from atomo_cluster.ec2.invocation.run import Run
from atomo_cluster.ec2.targets.each_host import finish, heading, live, on_each, record
from atomo_cluster.ec2.targets.selection import cluster_hosts, select

HELP: Final = """\
  pytorch_ec2.py run_command all uptime
  pytorch_ec2.py run_command workers 'nvidia-smi --list-gpus' --json
  pytorch_ec2.py run_command i-0abc,i-0def 'df -h /'

HOSTS is all, master, workers, or identifiers or aliases with commas between. Runs on all of them at
the same time, shows each line as it comes, with its host, and ends with 11 if it failed on one."""


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("hosts", metavar="HOSTS", help="where")
    parser.add_argument("command", metavar="COMMAND", help="a line for the hosts' shell")
    add_hostfile(parser)


def run(run: Run) -> int:
    chosen = select(cluster_hosts(run), run.options.hosts)
    answers = on_each(run, chosen, run.options.command, live(run))
    for answer in answers:
        if answer.code:
            run.say(heading(answer))
    record(run, answers)
    finish(answers)
    return 0
