"""Costs of hosts, disks and images: past, present and until the fuses."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta, timezone
from math import inf
from typing import Final

from atomo_cluster.ec2.aws.inventory import (
    ENDED,
    LIVE,
    NEVER,
    Disk,
    Instance,
    after,
    foreign_volumes,
    volumes,
)
from atomo_cluster.ec2.images.baked import snapshots
from atomo_cluster.ec2.invocation.run import Run
from atomo_cluster.ec2.money.ledger import LedgerEntry, life_key, read_entries, record_entries
from atomo_cluster.ec2.money.prices import MONTH_H, Prices, prices, snapshot_month, sum_known
from atomo_cluster.ec2.money.survey import cluster_instances
from atomo_cluster.ec2.settings.cluster import Cluster
from atomo_cluster.ec2.settings.place import Place
from atomo_cluster.errors import CloudError

__all__ = [
    "NOT_SEEN",
    "STOPPED",
    "Bill",
    "Cost",
    "all_costs",
    "bill",
    "bound_entry",
    "cost_except",
    "cost_unseen",
    "ended_elsewhere",
    "ended_usd",
    "hours_of",
    "ledger_entry",
    "of_images",
    "product",
    "record_before_start",
    "usd_until_fuses",
    "with_ledger",
]

BOOT_H: Final = 0.1  # hosts cost from their start, and the fuse burns from their boot
STOPPED: Final = "stopped"
NOT_SEEN: Final = "not seen"
UNKNOWN: Final = Place()


@dataclass(frozen=True)
class Cost:
    """The cost of a host with its disks, or of a disk without a host; None: unknown."""

    id: str
    type: str
    state: str
    hours: float
    usd_per_hour: float | None
    usd_so_far: float | None
    usd_until_fuse: float | None


def all_costs(run: Run) -> list[Cost]:
    """Returns the cost of each host, of each disk without a host, and of disks attached by hand."""
    hosts = cluster_instances(run, [*LIVE, *ENDED])
    alive = [host.id for host in hosts if host.state in LIVE]
    foreign = foreign_volumes(run.aws, run.owned, alive)
    by_hand = [disk for disk in foreign if disk.outlives]  # the others end with their hosts
    disks = volumes(run.aws, run.owned) + [disk for disk in foreign if not disk.outlives]
    prices_now = priced(run, hosts)
    loose = [disk for disk in disks if disk.host not in {host.id for host in hosts}]
    return [
        *(of_host(run, host, disks, prices_now) for host in hosts),
        *(of_disk(disk, prices_now, "alone") for disk in loose),
        *(of_disk(disk, prices_now, f"attached by hand to {disk.host}") for disk in by_hand),
    ]


def with_ledger(run: Run, costs: list[Cost]) -> list[Cost]:
    """Adds hosts of this place that EC2 no longer knows, and updates the ledger."""
    hosts = {host.id: host for host in cluster_instances(run, [*LIVE, *ENDED])}
    record_entries(run.cluster, run.owned.owner, [
        entry(run, hosts[cost.id], cost) for cost in costs if cost.id in hosts
    ])  # fmt: skip
    recorded = read_entries(run.cluster, run.owned.owner, run.place)
    listed = {life_key(host.id, host.launched.isoformat()) for host in hosts.values()}
    return costs + [cost_from_ledger(life) for key, life in recorded.items() if key not in listed]


def ended_usd(run: Run) -> float | None:
    """Returns USD spent on hosts that have ended; None: unknown."""
    costs = with_ledger(run, all_costs(run))
    return sum_known([cost.usd_so_far for cost in costs if cost.state in ENDED])


def usd_until_fuses(run: Run, hosts: Sequence[Instance]) -> float | None:
    """Returns an upper bound in USD on the whole lives of running hosts; None: unknown."""
    prices_now = prices(run.aws, [host.type for host in hosts], (), ())
    disk = prices_now.disk_hour(run.cluster.volume_gb)

    def bound(host: Instance) -> float | None:
        limit = run.cluster.spot_price if host.spot else None
        address = prices_now.address_hour if host.public_ip else 0.0
        hourly = sum_known([prices_now.most([host.type], limit), disk, address])
        return product(hourly, host.max_hours + BOOT_H)

    return sum_known([bound(host) for host in hosts])


def record_before_start(run: Run, hosts: Sequence[Instance], now: datetime) -> None:
    """Records the cost of stopped hosts before their start: EC2 counts from the last start."""
    ids = {host.id: host for host in hosts}
    lives = [entry(run, ids[cost.id], cost) for cost in all_costs(run) if cost.id in ids]
    record_entries(
        run.cluster, run.owned.owner, [replace(life, until=now.isoformat()) for life in lives]
    )


def entry(run: Run, host: Instance, cost: Cost) -> LedgerEntry:
    """Returns the ledger entry of a host; a stopped host's cost is spread over its whole life."""
    over, now, hours = host.state in ENDED, datetime.now(timezone.utc), cost.hours
    until = host.launched + timedelta(hours=hours) if over else host.fuse
    if host.state == STOPPED:
        until, hours = after(now, host.max_hours), hours_of(now - host.launched)
    hourly = cost.usd_so_far / hours if cost.usd_so_far and hours else cost.usd_per_hour
    ended = over and host.ended is not None
    return replace(ledger_entry(host, until, ended, hourly, run.place), owner=run.owned.owner)


def bound_entry(host: Instance, prices_now: Prices, cluster: Cluster, now: datetime) -> LedgerEntry:
    """Returns the ledger entry of a host, with an upper bound on its price.

    The price is the list price or `spot_price`. The master looks at the hosts all the time: a host
    of unknown end ended now.
    """
    over = host.state in ENDED
    limit = cluster.spot_price if host.spot else None
    address = prices_now.address_hour if over or host.public_ip else 0.0
    disk = prices_now.disk_hour(cluster.volume_gb)
    hourly = sum_known([prices_now.most([host.type], limit), disk, address])
    return ledger_entry(host, end_of(host, now) if over else host.fuse, over, hourly)


def ledger_entry(
    host: Instance, until: datetime, ended: bool, hourly: float | None, place: Place = UNKNOWN
) -> LedgerEntry:
    """Returns the ledger entry of a host."""
    return LedgerEntry(host.id, host.owner, host.type, host.launched.isoformat(), until.isoformat(),
                       ended, hourly, **asdict(place))  # fmt: skip


def end_of(host: Instance, now: datetime) -> datetime:
    """Returns the end of an ended host; where EC2 does not say when, its fuse or now."""
    return min(host.ended or now, host.fuse, now)


def cost_from_ledger(life: LedgerEntry) -> Cost:
    """Returns the cost of a host that EC2 no longer knows."""
    now = datetime.now(timezone.utc)
    total = life.usd(now)
    return Cost(life.id, life.type, ENDED[-1], life.hours(now), 0.0, total, total)


def cost_unseen(life: LedgerEntry) -> Cost:
    """Returns the cost of a host that is not seen from here, as if it ran until its fuse."""
    now, fuse = datetime.now(timezone.utc), datetime.fromisoformat(life.until)
    hourly = life.usd_per_hour if now < fuse else None  # whether its fuse has worked is not known
    bound = life.usd(fuse) if fuse < NEVER else None
    return Cost(life.id, life.type, NOT_SEEN, life.hours(now), hourly, life.usd(now), bound)


def ended_elsewhere(run: Run, looked: Sequence[Run]) -> list[Cost]:
    """Returns the costs of hosts that have ended in other places than those of `looked`."""
    return [
        cost_from_ledger(life)
        for life in read_entries(run.cluster, run.owned.owner).values()
        if life.ended and not any(place.place.covers(life.place) for place in looked)
    ]


@dataclass(frozen=True)
class Bill:
    """Upper bounds on the cost of the whole cluster, in USD; None: the price of a host is unknown.

    The master computes it from the ledger, so that `max_usd` holds without any other machine.
    """

    usd: float | None  # so far, ended hosts included
    usd_per_hour: float | None  # now


def bill(lives: Sequence[LedgerEntry], now: datetime) -> Bill:
    """Sums the cost of all hosts, past and present.

    >>> begin, end = "2026-01-01T00:00:00+00:00", "2026-01-01T02:00:00+00:00"
    >>> ended = LedgerEntry("i-1", "ana", "m5.large", begin, end, True, 0.5)
    >>> runs = LedgerEntry("i-2", "ana", "m5.large", begin, "2026-01-01T08:00:00+00:00", False, 0.5)
    >>> bill([ended, runs], datetime.fromisoformat("2026-01-01T03:00:00+00:00"))
    Bill(usd=2.5, usd_per_hour=0.5)
    """
    live = [life for life in lives
            if not life.ended and datetime.fromisoformat(life.until) > now]  # fmt: skip
    return Bill(
        usd=sum_known([life.usd(now) for life in lives]),
        usd_per_hour=sum_known([life.usd_per_hour for life in live]),
    )


def cost_except(
    lives: Sequence[LedgerEntry], running: Sequence[Instance], now: datetime
) -> float | None:
    """Returns the cost of all hosts except the running ones, even if their ends are unknown."""
    excluded = {life_key(host.id, host.launched.isoformat()) for host in running}
    return sum_known(
        [life.usd(now) for life in lives if life_key(life.id, life.launched) not in excluded]
    )


def priced(run: Run, hosts: Sequence[Instance]) -> Prices:
    """Fetches the prices of hosts by their purchase methods."""
    spot = [host for host in hosts if host.spot]
    types = [host.type for host in hosts]
    return prices(run.aws, types, {host.type for host in spot}, {host.zone for host in spot})


def of_host(run: Run, host: Instance, disks: Sequence[Disk], prices_now: Prices) -> Cost:
    """Returns the cost of a host. Disks of an ended host count with their configured size."""
    now = datetime.now(timezone.utc)
    over, asleep = host.state in ENDED, host.state == STOPPED
    until = end_of(host, now) if over else min(host.ended or now, now)
    hours = hours_of(until - host.launched)
    disk_sizes = [disk.gb for disk in disks if disk.host == host.id]
    disk = prices_now.disk_hour(sum(disk_sizes) if disk_sizes else run.cluster.volume_gb)
    public = over or asleep or host.public_ip is not None
    address = prices_now.address_hour if public else 0.0
    hourly = sum_known([prices_now.hourly(host.type, host.spot, host.zone), disk, address])
    if asleep:
        return of_stopped(host, hours, hourly, disk)
    times = (0.0 if over else 1.0, hours, hours if over else max(hours, host.max_hours))
    return Cost(host.id, host.type, host.state, hours, *(product(hourly, time) for time in times))


def product(hourly: float | None, hours: float) -> float | None:
    """Returns the cost of some hours; None if the price is unknown, or an end."""
    if not hours:
        return 0.0
    return None if hourly is None or hours == inf else hourly * hours


def hours_of(span: timedelta) -> float:
    """Converts a duration to hours, at least 0."""
    return max(0.0, span.total_seconds() / 3600)


def of_stopped(host: Instance, hours: float, hourly: float | None, disk: float | None) -> Cost:
    """Returns the cost of a stopped host: its disk now, and all if it starts again."""
    slept = hours_of(datetime.now(timezone.utc) - host.launched) - hours
    if hourly is None or disk is None:
        return Cost(host.id, host.type, host.state, hours, disk, None, None)
    so_far = hourly * hours + disk * slept
    later = product(hourly, host.max_hours)
    return Cost(host.id, host.type, host.state, hours, disk, so_far, sum_known([so_far, later]))


def of_images(run: Run) -> list[Cost]:
    """Returns upper bounds on the cost of baked images, which no fuse ends."""
    try:
        baked_snapshots = snapshots(run.aws, run.owned)
    except CloudError as error:  # as where an identity may not look
        run.say(f"baked images are not in it: {error}")
        return []
    monthly = snapshot_month(run.aws) if baked_snapshots else None
    costs = []
    for snapshot in baked_snapshots:
        hours = hours_of(datetime.now(timezone.utc) - snapshot.made)
        hourly = None if monthly is None else monthly * snapshot.gb / MONTH_H
        so_far = None if hourly is None else hourly * hours
        name = f"{snapshot.gb} GB, {snapshot.image or 'image gone'}"
        costs.append(Cost(snapshot.id, name, "image", hours, hourly, so_far, so_far))
    return costs


def of_disk(disk: Disk, prices_now: Prices, state: str) -> Cost:
    """Returns the cost of a disk that no fuse ends."""
    hours = (datetime.now(timezone.utc) - disk.made).total_seconds() / 3600
    hourly = prices_now.disk_hour(disk.gb) if disk.kind == "gp3" else None
    so_far = None if hourly is None else hourly * hours
    return Cost(disk.id, f"{disk.gb} GB {disk.kind}", state, hours, hourly, so_far, so_far)
