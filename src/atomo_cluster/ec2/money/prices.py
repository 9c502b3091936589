"""Prices from AWS, in USD; None where AWS gives no price."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Final

from atomo_cluster.ec2.aws.client import Aws
from atomo_cluster.errors import CloudError

__all__ = [
    "MONTH_H",
    "Prices",
    "format_usd",
    "list_prices",
    "lowest",
    "prices",
    "snapshot_month",
    "spot_market",
    "spot_prices",
    "sum_known",
]

LINUX: Final = ("Linux/UNIX", "Linux/UNIX (Amazon VPC)")
MONTH_H: Final = 730.0  # as AWS counts


@dataclass(frozen=True)
class Prices:
    """Prices in USD; None: unknown."""

    listed: Mapping[str, float | None]  # on-demand, by type; spot never costs more
    spot: Mapping[tuple[str, str], float]  # now, by zone and type; unknown prices are missing
    disk_gb_month: float | None
    address_hour: float | None

    def hourly(self, type: str, spot: bool, zone: str) -> float | None:
        """Returns the present price of an instance per hour, without disk and address."""
        return self.spot.get((zone, type)) if spot else self.listed.get(type)

    def most(self, types: Iterable[str], limit: float | None) -> float | None:
        """Returns an upper bound per hour for hosts of these types: list price or lower limit."""
        bounds = [lowest(self.listed.get(type), limit) for type in types]
        known_bounds = [bound for bound in bounds if bound is not None]
        return max(known_bounds) if len(known_bounds) == len(bounds) else None

    def tell(self, types: Iterable[str]) -> bool:
        """True if every part of the price of on-demand hosts of these types is known."""
        hosts = [self.listed.get(type) for type in types]
        return None not in (*hosts, self.disk_gb_month, self.address_hour)

    def disk_hour(self, volume_gb: int) -> float | None:
        """Returns the price of a disk per hour."""
        return None if self.disk_gb_month is None else self.disk_gb_month * volume_gb / MONTH_H


def prices(aws: Aws, types: Iterable[str], spot: Iterable[str], zones: Iterable[str]) -> Prices:
    """Fetches the present prices, with spot prices of the types `spot` in `zones`."""
    type_names = sorted(set(types))
    queries = [on_demand(aws.region, type) for type in type_names]
    disk, address, *type_prices = fetch_prices(
        aws, [disks(aws.region), addresses(aws.region), *queries]
    )
    return Prices(
        listed=dict(zip(type_names, type_prices, strict=True)),
        spot=spot_prices(aws, spot, zones),
        disk_gb_month=disk,
        address_hour=address,
    )


@dataclass(frozen=True)
class Query:
    """A query for one product of the price list."""

    service: str
    attributes: Mapping[str, str]


def disks(region: str) -> Query:
    """Queries the price of a disk per GB and month."""
    kind = {"productFamily": "Storage", "volumeApiName": "gp3"}
    return Query("AmazonEC2", {**kind, "regionCode": region})


def addresses(region: str) -> Query:
    """Queries the price of a public address per hour."""
    return Query("AmazonVPC", {"group": "VPCPublicIPv4Address", "regionCode": region})


def snapshot_month(aws: Aws) -> float | None:
    """Returns USD per GB and month of a snapshot; with several prices, the highest."""
    kind = {"productFamily": "Storage Snapshot", "regionCode": aws.region}
    return fetch_prices(aws, [Query("AmazonEC2", kind)])[0]


def hosts(region: str) -> Query:
    """Queries the prices of hosts of every type, per hour."""
    kind = {"operatingSystem": "Linux", "preInstalledSw": "NA", "tenancy": "Shared"}
    return Query("AmazonEC2", {**kind, "regionCode": region, "capacitystatus": "Used"})


def on_demand(region: str, type: str) -> Query:
    """Queries the price of a host per hour."""
    query = hosts(region)
    return Query(query.service, {**query.attributes, "instanceType": type})


def fetch_prices(aws: Aws, queries: Sequence[Query]) -> list[float | None]:
    """Fetches the prices of products; stops asking after the first error."""
    amounts: list[float | None] = []
    for query in queries:
        try:
            amounts.append(product(aws, query))
        except CloudError:
            break
    return amounts + [None] * (len(queries) - len(amounts))


def spot_prices(
    aws: Aws, types: Iterable[str], zones: Iterable[str]
) -> dict[tuple[str, str], float]:
    """Returns the latest spot prices by zone and type, if known."""
    places = sorted(set(zones))
    if not places:
        return {}
    return spot_market(aws, types, [{"Name": "availability-zone", "Values": places}])


def spot_market(
    aws: Aws, types: Iterable[str], filters: Sequence[Mapping[str, Any]] = ()
) -> dict[tuple[str, str], float]:
    """Returns the spot prices of all zones of the region."""
    type_names = sorted(set(types))
    if not type_names:
        return {}
    try:
        history = list(
            aws.pages(
                "ec2.describe_spot_price_history",
                "SpotPriceHistory",
                InstanceTypes=type_names,
                StartTime=datetime.now(timezone.utc),
                Filters=list(filters),
            )
        )
    except CloudError:
        return {}
    linux_records = [record for record in history if record["ProductDescription"] in LINUX]
    linux_records.sort(key=lambda record: record["Timestamp"])  # the newest of a pair comes last
    return {
        (record["AvailabilityZone"], record["InstanceType"]): float(record["SpotPrice"])
        for record in linux_records
    }


def product(aws: Aws, query: Query) -> float | None:
    """Returns the price of the product that a query matches."""
    prices_listed = [price for entry in entries(aws, query) for price in usd(entry)]
    return max(prices_listed, default=None)  # of several, none is cheaper than promised


def list_prices(aws: Aws) -> dict[str, float]:
    """Returns the on-demand prices of all types of the region, if known."""
    price_of_type: dict[str, float] = {}
    try:
        for entry in entries(aws, hosts(aws.region)):
            type = entry["product"]["attributes"]["instanceType"]
            price_of_type[type] = max([price_of_type.get(type, 0.0), *usd(entry)])
    except CloudError:
        return {}
    return {type: price for type, price in price_of_type.items() if price}


def entries(aws: Aws, query: Query) -> Iterator[Mapping[str, Any]]:
    """Yields the entries of the price list that a query matches."""
    filters = [
        {"Type": "TERM_MATCH", "Field": name, "Value": value}
        for name, value in query.attributes.items()
    ]
    action, service = "pricing.get_products", query.service
    for text in aws.pages(action, "PriceList", ServiceCode=service, Filters=filters):
        yield json.loads(text)


def usd(listed: Mapping[str, Any]) -> list[float]:
    """Returns the nonzero prices in an entry of the price list."""
    terms = listed.get("terms", {}).get("OnDemand", {}).values()
    dimensions = [dimension for term in terms for dimension in term["priceDimensions"].values()]
    amounts = (float(dimension["pricePerUnit"].get("USD", 0)) for dimension in dimensions)
    return [price for price in amounts if price > 0]


def lowest(*bounds: float | None) -> float | None:
    """Returns the lowest known bound."""
    return min((bound for bound in bounds if bound is not None), default=None)


def sum_known(amounts: Sequence[float | None]) -> float | None:
    """Returns the sum; None if any amount is unknown."""
    known_amounts = [amount for amount in amounts if amount is not None]
    return sum(known_amounts, 0.0) if len(known_amounts) == len(amounts) else None


def format_usd(amount: float | None, digits: int = 2) -> str:
    """Formats an amount.

    >>> format_usd(1234.5), format_usd(0.0416, 4), format_usd(None)
    ('$1,234.50', '$0.0416', 'unknown')
    """
    return "unknown" if amount is None else f"${amount:,.{digits}f}"
