"""A plan as tables, text and JSON records."""

from collections.abc import Sequence
from typing import Final

from rich.table import Table

from atomo_cluster.ec2.images.published import Image
from atomo_cluster.ec2.invocation.tables import table
from atomo_cluster.ec2.invocation.wrapping import entry
from atomo_cluster.ec2.launch.attempts import Attempt, Group
from atomo_cluster.ec2.launch.plan import Plan
from atomo_cluster.ec2.money.prices import format_usd
from atomo_cluster.ec2.settings.terms import ROLES

__all__ = ["order_table", "plan_lines", "plan_record", "plan_table"]

RESERVED: Final = "reserved"


def plan_table(plan: Plan) -> Table:
    """Returns the table of hosts."""
    title = f"{plan.cluster.name} in {plan.subnet.zone}"
    shown: Table = table(title, ("hosts", "type", "each", "disk", "per hour"), right=("per hour",))
    for group in plan.groups:
        machine = group.machine
        gpus = f"\n{machine.gpus} x {machine.gpu}" if machine.gpus else ""
        shown.add_row(
            f"{group.count} {group.role}{'s' if group.count > 1 else ''}\n{group.method}",
            machine.type + "".join(f"\nor {alternative}" for alternative in group.alternatives),
            f"{machine.vcpus} vCPU, {machine.memory_gib:g} GiB{gpus}\n{machine.network}",
            f"{group.disk_gb} GB gp3",
            f"{group.count} x {format_usd(group.hourly, 4)}",
        )
    return shown


def order_table(plan: Plan) -> Table:
    """Returns the table of attempts."""
    columns = ("order", "zone", "workers", "instances per hour")
    shown: Table = table("tried until AWS has the capacity", columns, right=columns[-1:])
    for number, attempt in enumerate(plan.attempts, 1):
        types = " or ".join(attempt.groups[-1].types)
        shown.add_row(str(number), attempt.subnet.zone, types, format_usd(attempt.hourly, 4))
    return shown


def plan_lines(plan: Plan, ssh_from: str, ends: Sequence[str]) -> list[str]:
    """Returns the lines below the tables: cost, ends by AWS, network, shared folder, images."""
    cluster, hosts = plan.cluster, sum(group.count for group in plan.groups)
    public = f"{hosts} public addresses" if plan.subnet.public else "no public addresses"
    access = f"ssh from {ssh_from} only" if ssh_from else "ssh through Session Manager alone"
    parts = ", ".join(f"{name} {format_usd(part, 4)}" for name, part in plan.parts.items())
    served = (
        cluster.storage or cluster.nfs_ip_address
        if cluster.outlives
        else "the master's disk, with which it ends,"
    )
    shared = f"{served} at {cluster.nfs_mount_point}"
    until = f"until the fuse, {cluster.max_hours:g} hours after the start"
    lines = [
        entry("cost", f"{format_usd(plan.hourly, 4)} per hour ({parts})"),
        entry("", f"at most {format_usd(plan.total)} {until}, "
              + ("whatever spot prices do" if any(map(cluster.spot, ROLES)) else "all together")),
        entry("", "traffic to the internet is not in it"),
        *(entry("" if place else "end", line) for place, line in enumerate(ends)),
        entry("network", f"subnet {plan.subnet.id}, {public}, {access}"
              + (", placement group" if cluster.placement_group else "")
              + (", EFA" if cluster.efa else "")),
        entry("shared", shared if cluster.shares else "none (nfs_ip_address is empty)"),
        *(entry("images", f"{image.id} ({image.name})") for image in images(plan)),
        *replacement_lines(plan),
    ]  # fmt: skip
    if RESERVED in map(cluster.method_of, ROLES):
        lines.append(entry("method", "reserved: launched as on-demand and priced so; what the "
                           "account has reserved AWS takes off in the bill"))  # fmt: skip
    if plan.running:
        lines.insert(
            0, entry("running", f"{len(plan.running)} of {cluster.hosts} hosts, which stay")
        )
    return lines


def replacement_lines(plan: Plan) -> list[str]:
    """Returns the lines on the hosts by which the supervisor replaces lost workers, if any."""
    if not plan.replacements:
        return []
    order = [
        f"{attempt.groups[-1].method} {attempt.where}, {format_usd(attempt.hourly, 4)} per hour"
        for attempt in plan.replacements
    ]
    zones = {attempt.subnet.zone for attempt in plan.replacements}
    traffic = "traffic between zones costs, and is not in it; " if len(zones) > 1 else ""
    return [
        entry("replaced", f"a worker that goes: {'; then '.join(order)}"),
        entry("", f"{traffic}never from another region, whose hosts share no network with these: "
              "where a region has none, `shutdown` and a `launch` elsewhere"),
    ]  # fmt: skip


def images(plan: Plan) -> list[Image]:
    """Lists the images of the hosts to launch."""
    return sorted({group.image for group in plan.groups}, key=lambda image: image.id)


def plan_record(plan: Plan, ssh_from: str) -> dict[str, object]:
    """Returns the plan as a record for `--json`."""
    return {
        "cluster": plan.cluster.name,
        "owner": plan.owned.owner,
        "zone": plan.subnet.zone,
        "subnet": plan.subnet.id,
        "method": {role: plan.cluster.method_of(role) for role in ROLES},
        "ssh_from": ssh_from,
        "running": [host.id for host in plan.running],
        "launch": [group_record(group) for group in plan.groups],
        "attempts": [attempt_record(attempt) for attempt in plan.attempts if attempt.groups],
        "replacements": [
            {**attempt_record(attempt), "method": attempt.groups[-1].method}
            for attempt in plan.replacements
        ],
        "usd_per_hour": plan.hourly,
        "usd_per_hour_of": plan.parts,
        "max_hours": plan.cluster.max_hours,
        "usd_until_fuse": plan.total,
        "max_usd": plan.cluster.max_usd,
    }


def group_record(group: Group) -> dict[str, object]:
    """Returns a group of identical hosts as a record."""
    return {
        "role": group.role,
        "count": group.count,
        "method": group.method,
        "type": group.machine.type,
        "alternatives": list(group.alternatives),
        "vcpus": group.machine.vcpus,
        "memory_gib": group.machine.memory_gib,
        "gpus": group.machine.gpus,
        "image": group.image.id,
        "usd_per_hour": group.hourly,
    }


def attempt_record(attempt: Attempt) -> dict[str, object]:
    """Returns an attempt as a record."""
    return {
        "zone": attempt.subnet.zone,
        "types": {group.role: list(group.types) for group in attempt.groups},
        "usd_per_hour_of_instances": attempt.hourly,
    }
