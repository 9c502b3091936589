"""What things cost, where AWS tells; None where it does not."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Final

from atomo_cluster.ec2.aws import Aws
from atomo_cluster.errors import CloudError

__all__ = [
    "MONTH_H",
    "Prices",
    "added",
    "list_prices",
    "lowest",
    "money",
    "prices",
    "snapshot_month",
    "spot_market",
    "spot_prices",
]

LINUX: Final = ("Linux/UNIX", "Linux/UNIX (Amazon VPC)")
MONTH_H: Final = 730.0  # as AWS counts


@dataclass(frozen=True)
class Prices:
    """USD; None: AWS did not say."""

    listed: Mapping[str, float | None]  # on-demand, by type; spot never costs more
    spot: Mapping[tuple[str, str], float]  # now, by zone and type; what is not told is not there
    disk_gb_month: float | None
    address_hour: float | None

    def hourly(self, type: str, spot: bool, zone: str) -> float | None:
        """One instance now, per hour, without disk and address."""
        return self.spot.get((zone, type)) if spot else self.listed.get(type)

    def most(self, types: Iterable[str], limit: float | None) -> float | None:
        """The bound on a host of one of these types, per hour: list price or limit, the lower."""
        bounds = [lowest(self.listed.get(type), limit) for type in types]
        known = [bound for bound in bounds if bound is not None]
        return max(known) if len(known) == len(bounds) else None

    def tell(self, types: Iterable[str]) -> bool:
        """Whether nothing is unknown that on-demand hosts of these types cost."""
        hosts = [self.listed.get(type) for type in types]
        return None not in (*hosts, self.disk_gb_month, self.address_hour)

    def disk_hour(self, volume_gb: int) -> float | None:
        """A disk, per hour."""
        return None if self.disk_gb_month is None else self.disk_gb_month * volume_gb / MONTH_H


def prices(aws: Aws, types: Iterable[str], spot: Iterable[str], zones: Iterable[str]) -> Prices:
    """What hosts of these types cost now; `spot` are those of which it is asked in these zones."""
    wanted = sorted(set(types))
    queries = [on_demand(aws.region, type) for type in wanted]
    disk, address, *others = listed(aws, [disks(aws.region), addresses(aws.region), *queries])
    return Prices(
        listed=dict(zip(wanted, others, strict=True)),
        spot=spot_prices(aws, spot, zones),
        disk_gb_month=disk,
        address_hour=address,
    )


@dataclass(frozen=True)
class Query:
    """What finds one product in the price list."""

    service: str
    attributes: Mapping[str, str]


def disks(region: str) -> Query:
    """A disk, per GB and month."""
    kind = {"productFamily": "Storage", "volumeApiName": "gp3"}
    return Query("AmazonEC2", {**kind, "regionCode": region})


def addresses(region: str) -> Query:
    """A public address, per hour."""
    return Query("AmazonVPC", {"group": "VPCPublicIPv4Address", "regionCode": region})


def snapshot_month(aws: Aws) -> float | None:
    """USD for a GB of a snapshot and a month; of several kinds the dearest."""
    kind = {"productFamily": "Storage Snapshot", "regionCode": aws.region}
    return listed(aws, [Query("AmazonEC2", kind)])[0]


def hosts(region: str) -> Query:
    """Hosts of every type, per hour."""
    kind = {"operatingSystem": "Linux", "preInstalledSw": "NA", "tenancy": "Shared"}
    return Query("AmazonEC2", {**kind, "regionCode": region, "capacitystatus": "Used"})


def on_demand(region: str, type: str) -> Query:
    """A host, per hour."""
    every = hosts(region)
    return Query(every.service, {**every.attributes, "instanceType": type})


def listed(aws: Aws, queries: Sequence[Query]) -> list[float | None]:
    """The list prices of products; once AWS does not answer, it is not asked again."""
    found: list[float | None] = []
    for query in queries:
        try:
            found.append(product(aws, query))
        except CloudError:
            break
    return found + [None] * (len(queries) - len(found))


def spot_prices(
    aws: Aws, types: Iterable[str], zones: Iterable[str]
) -> dict[tuple[str, str], float]:
    """The latest spot prices, by zone and type, as far as AWS tells them."""
    places = sorted(set(zones))
    if not places:
        return {}
    return spot_market(aws, types, [{"Name": "availability-zone", "Values": places}])


def spot_market(
    aws: Aws, types: Iterable[str], filters: Sequence[Mapping[str, Any]] = ()
) -> dict[tuple[str, str], float]:
    """The same for all zones of the region."""
    wanted = sorted(set(types))
    if not wanted:
        return {}
    try:
        history = list(
            aws.pages(
                "ec2.describe_spot_price_history",
                "SpotPriceHistory",
                InstanceTypes=wanted,
                StartTime=datetime.now(timezone.utc),
                Filters=list(filters),
            )
        )
    except CloudError:
        return {}
    ours = [one for one in history if one["ProductDescription"] in LINUX]
    ours.sort(key=lambda one: one["Timestamp"])  # the newest of a pair overwrites the others
    return {(one["AvailabilityZone"], one["InstanceType"]): float(one["SpotPrice"]) for one in ours}


def product(aws: Aws, query: Query) -> float | None:
    """The price of the one product that has these attributes."""
    known = [price for entry in entries(aws, query) for price in usd(entry)]
    return max(known, default=None)  # of several, none is cheaper than promised


def list_prices(aws: Aws) -> dict[str, float]:
    """The on-demand prices of all types of the region, as far as AWS tells them."""
    found: dict[str, float] = {}
    try:
        for entry in entries(aws, hosts(aws.region)):
            type = entry["product"]["attributes"]["instanceType"]
            found[type] = max([found.get(type, 0.0), *usd(entry)])
    except CloudError:
        return {}
    return {type: price for type, price in found.items() if price}


def entries(aws: Aws, query: Query) -> Iterator[Mapping[str, Any]]:
    """The entries of the price list that a query finds."""
    filters = [
        {"Type": "TERM_MATCH", "Field": name, "Value": value}
        for name, value in query.attributes.items()
    ]
    action, service = "pricing.get_products", query.service
    for text in aws.pages(action, "PriceList", ServiceCode=service, Filters=filters):
        yield json.loads(text)


def usd(listed: Mapping[str, Any]) -> list[float]:
    """The prices in an entry of the price list that are not zero."""
    terms = listed.get("terms", {}).get("OnDemand", {}).values()
    dimensions = [one for term in terms for one in term["priceDimensions"].values()]
    told = (float(one["pricePerUnit"].get("USD", 0)) for one in dimensions)
    return [price for price in told if price > 0]


def lowest(*bounds: float | None) -> float | None:
    """The lowest of the bounds that are known."""
    return min((bound for bound in bounds if bound is not None), default=None)


def added(amounts: Sequence[float | None]) -> float | None:
    """The sum; unknown as soon as a part is."""
    known = [amount for amount in amounts if amount is not None]
    return sum(known, 0.0) if len(known) == len(amounts) else None


def money(amount: float | None, digits: int = 2) -> str:
    """An amount as people read it.

    >>> money(1234.5), money(0.0416, 4), money(None)
    ('$1,234.50', '$0.0416', 'unknown')
    """
    return "unknown" if amount is None else f"${amount:,.{digits}f}"
