"""`start_hosts`: starts stopped hosts."""

from argparse import ArgumentParser
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Final

from atomo_cluster.ec2.aws.instance_states import STOPPED_STATES, start_instances
from atomo_cluster.ec2.aws.inventory import Instance, instances
from atomo_cluster.ec2.commands.clusters.status import show_hosts
from atomo_cluster.ec2.hosts.host_files import host_records
from atomo_cluster.ec2.invocation.run import Run
from atomo_cluster.ec2.money.budget import check_budget
from atomo_cluster.ec2.money.costs import all_costs, record_before_start, with_ledger
from atomo_cluster.ec2.money.ledger import file_of
from atomo_cluster.ec2.money.prices import format_usd, sum_known
from atomo_cluster.ec2.places.scheduled_ends import check_ends, schedule_ends
from atomo_cluster.errors import CloudError, ConfigError

HELP: Final = """\
  pytorch_ec2.py start_hosts
  pytorch_ec2.py start_hosts --max-usd 20 --yes --json

Starts the hosts that `stop_hosts` has stopped, all or none. The remaining time of their fuses
counts from now on; `extend` moves them. Private addresses stay, public addresses are new. `launch`
then starts missing workers, such as spot workers, and `bootstrap` mounts the shared folder again
and writes the host files, in which the order of workers may differ."""


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--dry-run", action="store_true",
                        help="let EC2 say whether it would do it, and do nothing")  # fmt: skip


def run(run: Run) -> int:
    hosts = instances(run.aws, run.owned)
    asleep = [host for host in hosts if host.state in STOPPED_STATES]
    if not hosts:
        raise CloudError(f"cluster {run.cluster.name} has no hosts; `launch` starts them")
    ids = [host.id for host in asleep]
    if asleep:
        show(run, asleep)
    if asleep and run.options.dry_run:
        refusal = run.aws.refusal("ec2.start_instances", InstanceIds=ids)
        run.tell_dry_run({"ec2.start_instances": str(refusal or "")}, "starting them")
        return 0
    if asleep:
        wake(run, asleep)
    report(run)
    return 0


def show(run: Run, asleep: Sequence[Instance]) -> None:
    """Reports the hosts to start, and an upper bound on the cost."""
    for host in asleep:
        end = f"{host.max_hours:.1f} h later" if host.fuse_known else "at a time that is unknown"
        run.say(f"{host.id} {host.type} {host.role}: starts, and ends itself {end}")
    costs = with_ledger(run, all_costs(run))
    bound = sum_known([cost.usd_until_fuse for cost in costs])
    run.say(f"at most {format_usd(bound)} until the fuses, past costs included")
    check_budget(run.cluster.max_usd, [bound], "`shutdown` ends it, or give another max_usd")


def wake(run: Run, asleep: Sequence[Instance]) -> None:
    """Starts hosts; records their past cost first, which EC2 forgets at the start."""
    run.confirm()
    if any(host.state == "stopping" for host in asleep):
        run.aws.wait("instance_stopped", 600, InstanceIds=[host.id for host in asleep])
    try:
        record_before_start(run, asleep, datetime.now(timezone.utc))
    except ConfigError as error:  # the hosts start all the same
        run.say(f"not written down in {file_of(run.cluster)}: {error}")
    ids = [host.id for host in asleep]
    start_instances(run.aws, run.owned, ids)
    run.say(f"started: {', '.join(ids)}")  # whatever AWS says from now on


def report(run: Run) -> None:
    """Shows the cluster and the next step."""
    hosts = instances(run.aws, run.owned)
    failure = schedule_ends(run, hosts)
    show_hosts(run, hosts)
    missing = run.cluster.hosts - len(hosts)
    first = f"`launch` for the {missing} hosts that are missing, then " if missing > 0 else ""
    run.say(f"next: {first}`pytorch_ec2.py bootstrap`, which mounts the shared folder again")
    run.tell(host_records(hosts))
    check_ends(run, hosts, failure)
