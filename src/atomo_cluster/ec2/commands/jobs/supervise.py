"""`supervise`: the process that `train` starts on the master with `supervise: yes`."""

from argparse import ArgumentParser
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Final

from atomo_cluster.ec2.aws.bucket import Bucket
from atomo_cluster.ec2.commands.hosts.bootstrap import add_site, site_of
from atomo_cluster.ec2.invocation.run import Run
from atomo_cluster.ec2.supervisor.bounded import BoundedJob, BoundedStore
from atomo_cluster.ec2.supervisor.decision import Limits
from atomo_cluster.ec2.supervisor.event_log import JOB, EventLog
from atomo_cluster.ec2.supervisor.handover import FOLDER, STORY
from atomo_cluster.ec2.supervisor.host_pool import HostPool
from atomo_cluster.ec2.supervisor.loop import Supervisor
from atomo_cluster.ec2.supervisor.results import LocalResults, S3Results
from atomo_cluster.ec2.supervisor.supervised_job import HOSTS, SupervisedJob
from atomo_cluster.ec2.targets.selection import inner_network

HELP: Final = """\
  pytorch_ec2.py supervise --job 1 --config cluster.yaml -- --epochs 30

Not for people: `train` starts it on the master where settings say `supervise: yes`. It runs the
job, replaces workers that go, and ends hosts when the job is done, idle, or out of money."""
PASSES_ON: Final = True
EVERY_S: Final = 10.0


def arguments(parser: ArgumentParser) -> None:
    add_site(parser)
    parser.set_defaults(hostfile=None)
    parser.add_argument("--job", required=True, metavar="NAME", help="identifies the job")
    parser.add_argument("--every", type=float, default=EVERY_S, metavar="SECONDS",
                        help=f"between looks at the cluster (default {EVERY_S:g})")  # fmt: skip


def run(run: Run) -> int:
    cluster, home = run.cluster, Path.home()
    story = EventLog(home / STORY, now)
    if f"job {run.options.job}" not in {event.text for event in story.of_job[:1]}:
        (home / FOLDER / HOSTS).unlink(missing_ok=True)  # of the job before
        story.tell(JOB, f"job {run.options.job}")
    autostop = timedelta(minutes=cluster.autostop) if cluster.autostop else None
    public = (home / ".ssh/atomo_cluster.pub").read_text()
    Supervisor(
        Limits(cluster.max_usd, cluster.max_restarts, autostop),
        BoundedJob(SupervisedJob(cluster, run.options.passed_on, home)),
        HostPool(run, home / ".atomo", public, site_of),
        BoundedStore(
            S3Results(cluster, home, Bucket(run.aws, cluster.results), home / STORY)
            if cluster.results
            else LocalResults(cluster, home)
        ),
        story,
        lambda: inner_network(run),
        now,
    ).run(run.options.every)
    return 0


def now() -> datetime:
    """Returns the present time."""
    return datetime.now(timezone.utc)
