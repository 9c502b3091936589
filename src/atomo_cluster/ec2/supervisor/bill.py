"""Upper bound on the cost of the cluster: list price or `spot_price`, from launches to ends.

The master computes it, so that `max_usd` holds without any other machine. Ended hosts are included;
for hosts that EC2 no longer knows, the ledger has the data.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from atomo_cluster.ec2.aws.inventory import LIVE, Instance
from atomo_cluster.ec2.money.ledger import LedgerEntry, life_key
from atomo_cluster.ec2.money.prices import Prices, sum_known

__all__ = ["Bill", "bill", "cost_except", "entries"]


@dataclass(frozen=True)
class Bill:
    """Amounts in USD; None: the price of a host is unknown."""

    usd: float | None  # so far
    usd_per_hour: float | None  # now


def entries(
    hosts: list[Instance], prices: Prices, spot_price: float | None, disk_gb: int, now: datetime
) -> list[LedgerEntry]:
    """Returns the ledger entries of hosts, with upper bounds on their prices."""
    return [entry(one, prices, spot_price if one.spot else None, disk_gb, now) for one in hosts]


def entry(
    host: Instance, prices: Prices, limit: float | None, disk_gb: int, now: datetime
) -> LedgerEntry:
    """Returns the ledger entry of a host; without a time of its end from EC2, it ended now."""
    over = host.state not in LIVE
    until = min(host.ended or now, host.fuse, now) if over else host.fuse
    address = prices.address_hour if over or host.public_ip else 0.0
    hourly = sum_known([prices.most([host.type], limit), prices.disk_hour(disk_gb), address])
    return LedgerEntry(host.id, host.owner, host.type, host.launched.isoformat(), until.isoformat(),
                 over, hourly)  # fmt: skip


def bill(known: list[LedgerEntry], now: datetime) -> Bill:
    """Sums the cost of all hosts, past and present.

    >>> begin, end = "2026-01-01T00:00:00+00:00", "2026-01-01T02:00:00+00:00"
    >>> ended = LedgerEntry("i-1", "ana", "m5.large", begin, end, True, 0.5)
    >>> runs = LedgerEntry("i-2", "ana", "m5.large", begin, "2026-01-01T08:00:00+00:00", False, 0.5)
    >>> bill([ended, runs], datetime.fromisoformat("2026-01-01T03:00:00+00:00"))
    Bill(usd=2.5, usd_per_hour=0.5)
    """
    live = [one for one in known if not one.ended and datetime.fromisoformat(one.until) > now]
    return Bill(
        usd=sum_known([cost(one, now) for one in known]),
        usd_per_hour=sum_known([one.usd_per_hour for one in live]),
    )


def cost_except(
    known: list[LedgerEntry], running: Sequence[Instance], now: datetime
) -> float | None:
    """Returns the cost of all hosts except the running ones, even if their ends are unknown."""
    lives = {life_key(one.id, one.launched.isoformat()) for one in running}
    return sum_known(
        [cost(one, now) for one in known if life_key(one.id, one.launched) not in lives]
    )


def cost(one: LedgerEntry, now: datetime) -> float | None:
    """Returns the cost of a host."""
    spent = min(now, datetime.fromisoformat(one.until)) - datetime.fromisoformat(one.launched)
    hours = max(spent, timedelta(0)).total_seconds() / 3600
    return None if one.usd_per_hour is None else one.usd_per_hour * hours
