"""`stop`: makes a job write a checkpoint and end."""

from argparse import ArgumentParser
from typing import Final

from atomo_cluster.ec2.commands.hosts.bootstrap import add_hostfile
from atomo_cluster.ec2.commands.hosts.kill_python import add_wait
from atomo_cluster.ec2.commands.jobs.logs import number
from atomo_cluster.ec2.invocation.run import Run
from atomo_cluster.ec2.jobs.control import stop_job
from atomo_cluster.ec2.targets.selection import cluster_master

HELP: Final = """\
  pytorch_ec2.py stop 3
  pytorch_ec2.py stop 3 --wait 60

Has a job write a checkpoint and end, and waits for it; the same `train` continues from it. A
waiting job is taken out of the queue. `jobs` lists them. The hosts keep running."""


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB", help="its number, or last: the running job")
    add_wait(parser)
    add_hostfile(parser)


def run(run: Run) -> int:
    job = number(run.options.job)
    reply = stop_job(run, cluster_master(run), job, run.options.wait)
    run.say(reply or f"job {job} has ended")
    run.tell({"job": job})
    return 0
