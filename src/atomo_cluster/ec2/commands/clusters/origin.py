"""The origin of a cluster that another machine has launched: machine, owner, age and job."""

from collections.abc import Sequence
from datetime import datetime, timezone

from atomo_cluster.ec2.aws.inventory import Instance, instances
from atomo_cluster.ec2.aws.tags import this_machine
from atomo_cluster.ec2.invocation.run import Run
from atomo_cluster.ec2.jobs.control import list_jobs
from atomo_cluster.ec2.money.ledger import read_entries
from atomo_cluster.ec2.targets.selection import to_host
from atomo_cluster.errors import CloudError, ClusterError, ConfigError

__all__ = ["alive_jobs", "tell_origin"]

ALIVE = ("queued", "running", "stopping")


def tell_origin(run: Run) -> None:
    """Reports machine, owner, age and job of the cluster if another machine launched it."""
    try:
        hosts = instances(run.aws, run.owned)
    except CloudError as error:
        run.say(f"AWS does not say which machine launched it: {error}")
        return
    if hosts and launched_elsewhere(run, hosts[0]):
        run.say(origin_text(run, hosts))
        run.say(f"  its job: {job_text(run, hosts[0])}")


def launched_elsewhere(run: Run, first: Instance) -> bool:
    """True if this machine has not launched the first host: by its tag and by the ledger."""
    if first.machine and first.machine != this_machine():
        return True
    try:
        entries = read_entries(run.cluster, run.owned.owner).values()
    except ConfigError:  # damaged, so the tag alone decides
        return not first.machine
    return first.id not in {entry.id for entry in entries}


def origin_text(run: Run, hosts: Sequence[Instance]) -> str:
    """Formats machine, owner and age."""
    machine = hosts[0].machine or "unknown"
    here = machine == this_machine()
    title = "NOT IN THE LEDGER OF THIS MACHINE" if here else "LAUNCHED FROM ANOTHER MACHINE"
    oldest = min(host.launched for host in hosts)
    minutes = int((datetime.now(timezone.utc) - oldest).total_seconds() // 60)
    age = f"{minutes // 60} h {minutes % 60} min"
    return f"{title}: launched from {machine}, owner {run.owned.owner}, {age} ago"


def alive_jobs(run: Run, master: Instance) -> str:
    """Formats the jobs that run or wait, or why they are unknown; empty: there is none."""
    text = job_text(run, master)
    return "" if text.startswith("none") else f"jobs of the cluster: {text}"


def job_text(run: Run, master: Instance) -> str:
    """Formats the jobs that run or wait on the master, or why they are unknown."""
    if master.role != "master" or master.state != "running":
        return "none; no master runs"
    try:
        jobs = list_jobs(run, to_host(run, 0, master))
    except ClusterError as error:
        return f"unknown, since the master does not answer from here: {error}"
    alive = [f"{job.number} ({job.shown}) is {job.state}" for job in jobs if job.state in ALIVE]
    return ", ".join(alive) or "none runs or waits"
