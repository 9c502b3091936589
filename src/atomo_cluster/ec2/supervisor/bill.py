"""What the cluster has cost, at most: list price or `spot_price`, from launches to ends.

It is counted here, on the master: nothing but the hosts themselves is needed for `max_usd` to hold.
Hosts that have ended are in it, those that EC2 has forgotten as they were written down.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from atomo_cluster.ec2.inventory import LIVE, Instance
from atomo_cluster.ec2.ledger import Entry, life
from atomo_cluster.ec2.pricing import Prices, added

__all__ = ["Bill", "beside", "bill", "entries"]


@dataclass(frozen=True)
class Bill:
    """USD; None: AWS has never said what a host costs."""

    usd: float | None  # so far
    usd_per_hour: float | None  # now


def entries(
    hosts: list[Instance], prices: Prices, spot_price: float | None, disk_gb: int, now: datetime
) -> list[Entry]:
    """Hosts with the most that an hour of each costs, as they are written down."""
    return [entry(one, prices, spot_price if one.spot else None, disk_gb, now) for one in hosts]


def entry(
    host: Instance, prices: Prices, limit: float | None, disk_gb: int, now: datetime
) -> Entry:
    """One host. Where EC2 does not say when it ended, it ended now."""
    over = host.state not in LIVE
    until = min(host.ended or now, host.fuse, now) if over else host.fuse
    address = prices.address_hour if over or host.public_ip else 0.0
    hourly = added([prices.most([host.type], limit), prices.disk_hour(disk_gb), address])
    return Entry(host.id, host.owner, host.type, host.launched.isoformat(), until.isoformat(),
                 over, hourly)  # fmt: skip


def bill(known: list[Entry], now: datetime) -> Bill:
    """What all hosts that there ever were have cost.

    >>> begin, end = "2026-01-01T00:00:00+00:00", "2026-01-01T02:00:00+00:00"
    >>> ended = Entry("i-1", "ana", "m5.large", begin, end, True, 0.5)
    >>> runs = Entry("i-2", "ana", "m5.large", begin, "2026-01-01T08:00:00+00:00", False, 0.5)
    >>> bill([ended, runs], datetime.fromisoformat("2026-01-01T03:00:00+00:00"))
    Bill(usd=2.5, usd_per_hour=0.5)
    """
    live = [one for one in known if not one.ended and datetime.fromisoformat(one.until) > now]
    return Bill(
        usd=added([cost(one, now) for one in known]),
        usd_per_hour=added([one.usd_per_hour for one in live]),
    )


def beside(known: list[Entry], running: Sequence[Instance], now: datetime) -> float | None:
    """What all hosts have cost but those that run, whether or not anybody has seen their ends."""
    lives = {life(one.id, one.launched.isoformat()) for one in running}
    return added([cost(one, now) for one in known if life(one.id, one.launched) not in lives])


def cost(one: Entry, now: datetime) -> float | None:
    """What a host has cost."""
    spent = min(now, datetime.fromisoformat(one.until)) - datetime.fromisoformat(one.launched)
    hours = max(spent, timedelta(0)).total_seconds() / 3600
    return None if one.usd_per_hour is None else one.usd_per_hour * hours
