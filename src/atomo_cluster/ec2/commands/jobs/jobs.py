"""`jobs`: lists running, waiting and ended jobs."""

import time
from argparse import ArgumentParser
from dataclasses import asdict
from typing import Final

from atomo_cluster.ec2.commands.hosts.bootstrap import add_hostfile
from atomo_cluster.ec2.invocation.run import Run
from atomo_cluster.ec2.invocation.tables import table
from atomo_cluster.ec2.jobs.control import list_jobs
from atomo_cluster.ec2.jobs.job import Job
from atomo_cluster.ec2.targets.selection import cluster_master

HELP: Final = """\
  pytorch_ec2.py jobs
  pytorch_ec2.py jobs --json

Lists the jobs of the cluster, the oldest first: running jobs, waiting jobs (`train --queue`),
and ended jobs with their results, each with the folder of its checkpoints and records. `lost` is a
job that ended without a word: killed by force, or with its host. The master keeps the list, and it
ends with the master."""
COLUMNS: Final = ("job", "state", "began, UTC", "took", "runs")


def arguments(parser: ArgumentParser) -> None:
    add_hostfile(parser)


def run(run: Run) -> int:
    master = cluster_master(run)
    listed = list_jobs(run, master)
    if listed:
        shown = table(f"{run.cluster.name}, on {master.name}", COLUMNS)
        for job in listed:
            shown.add_row(*cells(job, int(time.time())))
        run.show(shown)
    else:
        run.say(f"no job has run yet on {master.name}; `train` starts one")
    run.tell([asdict(job) for job in listed])
    return 0


def cells(job: Job, now: int) -> list[str]:
    """Returns the row of a job."""
    state = f"{job.state}, code {job.code}" if job.state == "failed" else job.state
    began = "" if job.started is None else time.strftime("%d %b %H:%M", time.gmtime(job.started))
    runs = f"{job.shown}\nin {job.folder}" if job.folder else job.shown
    return [str(job.number), state, began, took(job, now), runs]


def took(job: Job, now: int) -> str:
    """Formats the run time of a job; empty: unknown.

    >>> took(Job(1, "done", 0, 10, 20, 20 + 3725, "", ""), 9999)
    '1:02:05'
    """
    end = job.ended or (now if job.state in ("running", "stopping") else None)
    if job.started is None or end is None:
        return ""
    minutes, seconds = divmod(max(0, end - job.started), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"
