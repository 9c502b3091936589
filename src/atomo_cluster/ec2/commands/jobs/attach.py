"""`attach`: follows a job to its exit code."""

from argparse import ArgumentParser
from typing import Final

from atomo_cluster.ec2.commands.hosts.bootstrap import add_hostfile
from atomo_cluster.ec2.commands.jobs.logs import ALL, add_job, number
from atomo_cluster.ec2.invocation.run import Run
from atomo_cluster.ec2.jobs.control import follow_job
from atomo_cluster.ec2.targets.selection import cluster_master

HELP: Final = """\
  pytorch_ec2.py attach
  pytorch_ec2.py attach 3

Prints all that a job has said and says, and ends with its exit code. Without JOB that which runs,
or else the last. Ctrl-C leaves the job alone; `stop JOB` ends it."""


def arguments(parser: ArgumentParser) -> None:
    add_job(parser)
    add_hostfile(parser)


def run(run: Run) -> int:
    job = number(run.options.job)
    code = follow_job(run, cluster_master(run), job, ALL)
    run.tell({"job": job, "exit_code": code})
    return code
