"""`extend`: moves the fuses of the hosts to a later time."""

from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Final

from atomo_cluster.arguments import CONVERTERS
from atomo_cluster.ec2.aws.inventory import Instance, instances
from atomo_cluster.ec2.commands.clusters.status import show_hosts
from atomo_cluster.ec2.hosts.fuses import extended, move_fuse, tag_hours
from atomo_cluster.ec2.hosts.host_files import host_records
from atomo_cluster.ec2.hosts.ssh import Answer, Host, on_all_hosts
from atomo_cluster.ec2.invocation.run import Run
from atomo_cluster.ec2.launch.plan import make_plan
from atomo_cluster.ec2.money.budget import check_budget
from atomo_cluster.ec2.money.costs import ended_usd
from atomo_cluster.ec2.money.ledger import record_fuses
from atomo_cluster.ec2.targets.each_host import finish
from atomo_cluster.ec2.targets.selection import host_keys, hosts_of, ssh_of
from atomo_cluster.errors import CloudError, ConfigError, RemoteError

HELP: Final = """\
  pytorch_ec2.py extend 4
  pytorch_ec2.py extend 12 --max-usd 50 --json

Moves the fuse of every running host: they end so many hours from now. It may be given again, and
never makes a fuse earlier. Where a host cannot be reached, its old fuse holds."""
LONGEST_H: Final = 720.0


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("hours", metavar="HOURS", type=CONVERTERS[float],
                        help="from now until the hosts end themselves")  # fmt: skip
    parser.set_defaults(hostfile=None)  # hosts of one's own have no fuse


def run(run: Run) -> int:
    if not 0.1 <= run.options.hours <= LONGEST_H:
        raise ConfigError(f"HOURS must be from 0.1 to {LONGEST_H:g}, got {run.options.hours:g}")
    hosts = instances(run.aws, run.owned, ["running"])
    if not hosts:
        raise CloudError(f"cluster {run.cluster.name} has no running hosts; `launch` starts them")
    until = datetime.now(timezone.utc) + timedelta(hours=run.options.hours)
    later = [extended(host, until) for host in hosts]
    if run.cluster.max_usd is not None:
        plan = replace(make_plan(run.aws, run.cluster, run.owned), running=tuple(later))
        check_budget(run.cluster.max_usd, [plan.total, ended_usd(run)])
    record_later_fuses(run, later)
    answers = on_hosts(run, hosts, until)
    if any(answer.code for answer in answers):
        run.say("where it fails the fuse stays as it was, and `extend` again moves it")
    finish(answers, shown=False)
    show_hosts(run, later)
    run.tell(host_records(later))
    return 0


def record_later_fuses(run: Run, later: Sequence[Instance]) -> None:
    """Tags the hosts with their new fuses, before the hosts learn of them.

    The order keeps the cost bound from ever being too low.

    Raises:
        CloudError: AWS refused. No host was contacted, and no fuse has moved.
    """
    for host in later:
        try:
            tag_hours(run.aws, host.id, host.max_hours)
        except CloudError as error:
            raise CloudError(f"{error}; no fuse has moved, whatever `status` says: `extend` again "
                             "moves them", error.code) from error  # fmt: skip
    try:
        record_fuses(run.cluster, run.owned.owner, {host.id: host.fuse for host in later})
    except ConfigError as error:  # which is no reason to let hosts end
        run.say(f"not written down: {error}")


def on_hosts(run: Run, hosts: Sequence[Instance], until: datetime) -> list[Answer]:
    """Moves the fuses on the hosts."""
    ssh = ssh_of(run)
    keys = host_keys(run, ssh)

    def move(host: Host) -> Answer:
        try:
            keys.pin(host)
        except RemoteError as error:
            return Answer(host, 255, "", str(error))
        return move_fuse(ssh, host, until)

    return on_all_hosts(hosts_of(run, hosts), move)
