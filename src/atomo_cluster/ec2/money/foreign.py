"""Disks and addresses that someone attached to hosts of a cluster by hand: those attached now, and
those of hosts that have ended, which the file has.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import datetime, timezone

from atomo_cluster.ec2.aws.inventory import (
    LIVE,
    UP,
    Address,
    Disk,
    Instance,
    addresses,
    foreign_volumes,
    instances,
    volumes_of,
)
from atomo_cluster.ec2.invocation.foreign_file import (
    ADDRESS,
    VOLUME,
    ForeignResource,
    read_foreign,
    write_foreign,
)
from atomo_cluster.ec2.invocation.run import Run
from atomo_cluster.ec2.money.costs import Cost, hours_of, product
from atomo_cluster.ec2.money.prices import Prices, prices
from atomo_cluster.errors import CloudError

__all__ = ["attached_resources", "costs_of_foreign", "recorded_resources", "still_there",
           "update_records"]  # fmt: skip


def attached_resources(run: Run) -> tuple[list[ForeignResource], list[str]]:
    """Returns the resources attached now to live hosts that outlive them, and AWS's refusals.

    A refusal is no error here: hosts end whatever AWS does not say.
    """
    try:
        hosts = {host.id: host for host in instances(run.aws, run.owned, LIVE)}
    except CloudError as error:
        return [], [unknown(run, VOLUME, error), unknown(run, ADDRESS, error)]
    resources, refusals = list[ForeignResource](), list[str]()
    try:
        disks = foreign_volumes(run.aws, run.owned, hosts)
        resources += [volume_of(run, disk) for disk in disks if disk.outlives]
    except CloudError as error:
        refusals.append(unknown(run, VOLUME, error))
    try:
        listed = addresses(run.aws, "instance-id", hosts)
        resources += [address_of(run, address, hosts[address.host]) for address in listed]
    except CloudError as error:
        refusals.append(unknown(run, ADDRESS, error))
    return resources, refusals


def unknown(run: Run, kind: str, error: CloudError) -> str:
    """Formats a refusal of AWS to say what is attached."""
    kinds, call = ("disks", "volumes") if kind == VOLUME else ("addresses", "addresses")
    return (
        f"AWS does not say whether {kinds} are attached by hand, which would stay and cost: "
        f"{error}; `aws ec2 describe-{call} --region {run.aws.region}` lists all"
    )


def volume_of(run: Run, disk: Disk) -> ForeignResource:
    """Returns the record of a disk."""
    what, since = f"{disk.gb} GB {disk.kind}", disk.made.isoformat()
    return resource_of(run, disk.id, VOLUME, what, disk.host, since)


def address_of(run: Run, address: Address, host: Instance) -> ForeignResource:
    """Returns the record of an address, which costs the cluster from the start of its host on."""
    since = host.launched.isoformat()
    return resource_of(run, address.id, ADDRESS, address.ip, address.host, since)


def resource_of(run: Run, id: str, kind: str, what: str, host: str, since: str) -> ForeignResource:
    """Returns the record of a resource in the place of the run."""
    return ForeignResource(id, kind, what, host, since, run.owned.owner, **asdict(run.place))


def recorded_resources(run: Run) -> list[ForeignResource]:
    """Returns the resources of the file that still exist in this place, and that nobody uses.

    Raises:
        CloudError: AWS does not say.
    """
    return still_there(run, [resource for resource in run.foreign if is_own(run, resource)])


def still_there(run: Run, resources: Sequence[ForeignResource]) -> list[ForeignResource]:
    """Returns the resources that exist, and are not attached to other hosts.

    Raises:
        CloudError: AWS does not say.
    """
    ids = {
        kind: [resource.id for resource in resources if resource.kind == kind]
        for kind in (VOLUME, ADDRESS)
    }
    hosts: dict[str, str] = {}
    if ids[VOLUME]:
        hosts |= {disk.id: disk.host for disk in volumes_of(run.aws, ids[VOLUME])}
    if ids[ADDRESS]:
        listed = addresses(run.aws, "allocation-id", ids[ADDRESS])
        hosts |= {address.id: address.host for address in listed}
    return [
        resource for resource in resources if hosts.get(resource.id, "-") in ("", resource.host)
    ]


def is_own(run: Run, resource: ForeignResource) -> bool:
    """True if a recorded resource is of this place and owner."""
    return resource.owner == run.owned.owner and run.place.covers(resource.place)


def update_records(run: Run, resources: Iterable[ForeignResource]) -> None:
    """Writes the resources of this place and owner down, in place of the earlier ones.

    Raises:
        ConfigError: the file is damaged or cannot be written.
    """
    before = read_foreign(run.given)
    after = [*(resource for resource in before if not is_own(run, resource)), *resources]
    if after != before:
        write_foreign(run.given, after)


def costs_of_foreign(run: Run) -> list[Cost]:
    """Returns the costs of addresses attached by hand, and of recorded disks; no fuse ends them.

    `all_costs` has the disks that are attached now.
    """
    attached, refusals = attached_resources(run)
    listed = [resource for resource in attached if resource.kind == ADDRESS]
    try:
        ids = {resource.id for resource in attached}
        listed += [resource for resource in recorded_resources(run) if resource.id not in ids]
    except CloudError as error:
        refusals.append(str(error))
    for refusal in refusals:
        run.say(f"not in it: {refusal}")
    if not listed:
        return []
    prices_now = prices(run.aws, (), (), ())
    public = {host.public_ip for host in instances(run.aws, run.owned, UP)}
    return [cost_of(resource, prices_now, resource.what in public) for resource in listed]


def cost_of(resource: ForeignResource, prices_now: Prices, counted: bool) -> Cost:
    """Returns the cost of a resource; nothing where its host's cost has it."""
    hours = hours_of(datetime.now(timezone.utc) - datetime.fromisoformat(resource.since))
    hourly = 0.0 if counted else hourly_of(resource, prices_now)
    so_far = product(hourly, hours)
    state = f"attached by hand to {resource.host}"
    return Cost(resource.id, f"{resource.kind} {resource.what}", state, hours, hourly, so_far,
                so_far)  # fmt: skip


def hourly_of(resource: ForeignResource, prices_now: Prices) -> float | None:
    """Returns USD per hour; None: the price is unknown."""
    if resource.kind == ADDRESS:
        return prices_now.address_hour
    gb, _, kind = resource.what.partition(" GB ")
    return prices_now.disk_hour(int(gb)) if kind == "gp3" else None
