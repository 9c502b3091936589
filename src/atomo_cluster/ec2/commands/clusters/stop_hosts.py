"""`stop_hosts`: stops hosts; their disks stay."""

from argparse import ArgumentParser
from collections.abc import Sequence
from typing import Final

from atomo_cluster.ec2.aws.instance_states import RUNNING_STATES, STOPPED_STATES, stop_instances
from atomo_cluster.ec2.aws.inventory import Instance, instances
from atomo_cluster.ec2.commands.clusters.resize import end
from atomo_cluster.ec2.commands.clusters.status import show_hosts
from atomo_cluster.ec2.hosts.fuses import pause_fuses, resume_fuses, tag_remaining_hours
from atomo_cluster.ec2.hosts.host_files import host_records
from atomo_cluster.ec2.hosts.ssh import Host
from atomo_cluster.ec2.invocation.run import Run
from atomo_cluster.ec2.jobs.control import check_idle
from atomo_cluster.ec2.money.costs import all_costs, with_ledger
from atomo_cluster.ec2.money.prices import MONTH_H, format_usd, sum_known
from atomo_cluster.ec2.places.aws_ends import UnseenEndsError, remove_ends
from atomo_cluster.ec2.places.scheduled_ends import schedule_ends, without_text
from atomo_cluster.ec2.settings.terms import YES
from atomo_cluster.ec2.targets.selection import host_keys, hosts_of, ssh_of
from atomo_cluster.errors import CloudError, ClusterError, ConfigError

HELP: Final = """\
  pytorch_ec2.py stop_hosts
  pytorch_ec2.py stop_hosts --end-spot --yes --json

Has EC2 stop the hosts: their disks stay, with all that is on them, and cost; the hosts cost
nothing. Their fuses wait meanwhile, so that nothing ends a stopped cluster: `start_hosts` wakes it,
`shutdown` ends it. Spot instances are bought for one time here, which EC2 does not stop: --end-spot
ends them with their disks, and `launch` buys them again afterwards. A job is to be stopped first,
with a checkpoint: `stop JOB`. No host is stopped unless all hosts answer."""


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--end-spot", action="store_true",
                        help="end spot instances, which cannot be stopped")  # fmt: skip
    parser.add_argument("--dry-run", action="store_true",
                        help="let EC2 say whether it would do it, and do nothing")  # fmt: skip
    parser.set_defaults(hostfile=None)  # hosts of one's own are not EC2's to stop


def run(run: Run) -> int:
    present = instances(run.aws, run.owned)
    up = [host for host in present if host.state in RUNNING_STATES]
    if not up:
        return nothing(run, present)
    staying, spot = [host for host in up if not host.spot], [host for host in up if host.spot]
    check_spot(run, present, spot)
    show(run, staying, spot)
    ids = [host.id for host in staying]
    if run.options.dry_run:
        refusal = run.aws.refusal("ec2.stop_instances", InstanceIds=ids)
        run.tell_dry_run({"ec2.stop_instances": str(refusal or "")}, "stopping them")
        return 0
    hosts = hosts_of(run, staying)
    if staying[0].role == "master":
        check_idle(run, hosts[0])
    run.confirm("Stop these?")
    put_to_sleep(run, hosts)
    if spot:
        end(run, [host.id for host in spot])
    report(run)
    return 0


def nothing(run: Run, hosts: list[Instance]) -> int:
    """Reports that no host runs."""
    if not hosts:
        raise CloudError(f"cluster {run.cluster.name} has no hosts; `launch` starts them")
    show_hosts(run, hosts)
    run.tell(host_records(hosts))
    return 0


def check_spot(run: Run, hosts: Sequence[Instance], spot: Sequence[Instance]) -> None:
    """Raises ConfigError if spot instances prevent the stop."""
    ids = ", ".join(host.id for host in spot)
    if not any(host.role == "master" and not host.spot for host in hosts):
        raise ConfigError(
            "there is no master that could be stopped: it is a spot instance, or not there. With "
            "nothing to come back to, `shutdown` is what ends the cluster"
        )
    if spot and not run.options.end_spot:
        raise ConfigError(
            f"{ids}: EC2 does not stop spot instances that were bought for one time; --end-spot "
            "ends them with their disks, and `launch` buys them again after `start_hosts`"
        )


def show(run: Run, staying: Sequence[Instance], spot: Sequence[Instance]) -> None:
    """Reports the fate of each host."""
    for word, group in (("stops", staying), ("ends, with its disk", spot)):
        for host in group:
            run.say(f"{host.id} {host.type} {host.role}: {word}")


def put_to_sleep(run: Run, hosts: Sequence[Host]) -> None:
    """Pauses fuses and stops hosts; after a failure the fuses of running hosts resume."""
    ssh, keys = ssh_of(run), host_keys(run, ssh_of(run))
    for host in hosts:
        keys.pin(host)
    paused = pause_fuses(ssh, hosts)
    ids = [host.id for host in hosts]
    try:
        without_ends(run, ids)
        stop_instances(run.aws, run.owned, ids)
    except CloudError:
        restore_ends(run)
        for host in resume_fuses(ssh, hosts):
            run.say(f"{host.name} ({host.id}) did not answer: at a restart its fuse would "
                    "count again from its present remaining time")  # fmt: skip
        raise
    try:
        tag_remaining_hours(run.aws, paused)
    except ClusterError as error:  # the hosts are stopped all the same
        run.say(f"`status` will show later fuses than the hosts have: {error}")
    run.say(f"stopped: {', '.join(host.id for host in hosts)}")  # whatever AWS says from now on


def without_ends(run: Run, ids: Sequence[str]) -> None:
    """Deletes the schedules of hosts: AWS would end stopped hosts, and their disks.

    Raises:
        CloudError: AWS refused.
    """
    try:
        remove_ends(run.aws, run.cluster, run.owned, ids)
    except CloudError as error:
        if isinstance(error, UnseenEndsError) and run.cluster.aws_end != YES:
            run.warn(
                f"NOT LOOKED AT: the schedules of group {run.owned.label} in EventBridge "
                "Scheduler. Where a launch has made some, AWS terminates the stopped hosts, and "
                f"their disks, 15 minutes after their fuses: {error}"
            )
            return
        raise CloudError(
            f"{error}; no host was stopped: AWS would terminate them, and their disks, 15 minutes "
            f"after their fuses, by the schedules of group {run.owned.label} in EventBridge "
            "Scheduler: `stop_hosts` again, or delete these there",
            error.code,
        ) from error


def restore_ends(run: Run) -> None:
    """Schedules the ends of hosts by AWS that go on running."""
    try:
        schedule_ends(run, instances(run.aws, run.owned, RUNNING_STATES))
    except CloudError as error:
        run.warn(without_text(str(error)))


def report(run: Run) -> None:
    """Shows the remaining hosts and their cost."""
    hosts = instances(run.aws, run.owned)
    show_hosts(run, hosts)
    asleep = {host.id for host in hosts if host.state in STOPPED_STATES}
    costs = dict(noted_costs(run))
    hourly = sum_known([costs.get(id) for id in asleep])
    monthly = None if hourly is None else hourly * MONTH_H
    run.say(f"asleep: the disks cost {format_usd(hourly, 4)} per hour, {format_usd(monthly)} a "
            "month, and no fuse ends them; `start_hosts` wakes them, `shutdown` ends "
            "them")  # fmt: skip
    run.tell(host_records(hosts))


def noted_costs(run: Run) -> list[tuple[str, float | None]]:
    """Returns the cost of each host per hour, and updates the ledger."""
    costs = []
    try:
        costs = all_costs(run)
        with_ledger(run, costs)
    except (CloudError, ConfigError) as error:  # the hosts are stopped all the same
        run.say(f"not written down: {error}")
    return [(cost.id, cost.usd_per_hour) for cost in costs]
