"""The report of an interrupted command: where it stopped, which hosts run, and what they cost."""

import sys
import traceback
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from atomo_cluster.ec2.aws.client import Aws
from atomo_cluster.ec2.aws.inventory import Instance, instances
from atomo_cluster.ec2.invocation.run import Run
from atomo_cluster.ec2.money.ledger import read_entries
from atomo_cluster.ec2.money.prices import format_usd, prices, sum_known
from atomo_cluster.errors import ClusterError, ConfigError
from atomo_cluster.visible import visible

__all__ = ["report_interruption"]

# These neither change hosts nor ask about those of a cluster, or run on the master.
SILENT: Final = frozenset({"init", "iam", "cheapest", "plan", "validate", "supervise"})
JOB: Final = (
    "a job that runs goes on, unless it was told to stop: `jobs` lists it, `attach` follows it, "
    "`stop` ends it, and `shutdown` ends the hosts"
)
FINISH: Final[Mapping[str, str]] = MappingProxyType(
    {
        "launch": "`launch` again starts what is missing, `shutdown` ends all",
        "resize": "`status` shows the hosts, `resize` again goes on, `shutdown` ends all",
        "clean_launch_and_run": "`launch` starts what is missing, `shutdown` ends all",
        "train": JOB,
        "attach": JOB,
        "logs": JOB,
    }
)


def report_interruption(run: Run, command: str, cause: BaseException) -> None:
    """Reports where a command stopped, the hosts that run, their price, and the next command.

    A second interrupt ends the report.
    """
    if command in SILENT or getattr(run.options, "hostfile", None):
        return
    say(f"INTERRUPTED: `{command}` stopped{place(cause)}")
    remedy = FINISH.get(command, f"`{command}` again goes on, `shutdown` ends all")
    try:
        for line in host_lines(run):
            say(f"  {line}")
        say(f"  {remedy}")
    except KeyboardInterrupt:
        say("  hosts may run, and cost: `status` shows them, `shutdown` ends them")


def say(text: str) -> None:
    """Prints a line to stderr, unless the terminal is gone."""
    try:
        sys.stderr.write(f"{visible(text)}\n")
        sys.stderr.flush()
    except OSError:
        return


def place(cause: BaseException) -> str:
    """Formats the call to AWS during which an exception was raised; empty: during none."""
    for frame, _ in reversed([*traceback.walk_tb(cause.__traceback__)]):
        here = frame.f_locals
        if isinstance(here.get("self"), Aws) and "action" in here:
            return f" during {here['action']}"
    return ""


def host_lines(run: Run) -> list[str]:
    """Lists the hosts that run, a line per region; also if AWS does not tell them."""
    try:
        return [region_line(region_run) for region_run in run.everywhere()]
    except ClusterError as error:
        return [f"hosts may run, and cost: {error}. `status` shows them"]


def region_line(run: Run) -> str:
    """Formats the hosts of a region and their price."""
    hosts, region = instances(run.aws, run.owned), run.aws.region
    if not hosts:
        return f"no host of {run.cluster.name} is alive in {region}"
    named = ", ".join(f"{host.id} ({host.role}, {host.state})" for host in hosts)
    hourly = format_usd(usd_per_hour(run, hosts), 4)
    count = f"{len(hosts)} host{'s are' if len(hosts) > 1 else ' is'} alive"
    return f"{count} in {region}, at {hourly} per hour: {named}"


def usd_per_hour(run: Run, hosts: Sequence[Instance]) -> float | None:
    """Returns the price of hosts, from the ledger or else from the price list; None: unknown."""
    try:
        lives = read_entries(run.cluster, run.owned.owner).values()
        recorded = {life.id: life.usd_per_hour for life in lives}
    except ConfigError:
        recorded = {}
    missing = [host for host in hosts if recorded.get(host.id) is None]
    if not missing:
        return sum_known([recorded[host.id] for host in hosts])
    listed = prices(run.aws, [host.type for host in missing], (), ())
    disk = listed.disk_hour(run.cluster.volume_gb)
    new = {host.id: sum_known([listed.listed[host.type], disk, listed.address_hour])
           for host in missing}  # fmt: skip
    return sum_known([{**recorded, **new}[host.id] for host in hosts])
