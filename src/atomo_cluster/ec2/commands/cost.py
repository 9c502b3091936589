"""`cost`: what the cluster has cost, costs and may cost."""

from argparse import ArgumentParser
from datetime import datetime, timezone
from typing import Any, Final

from rich.table import Table

from atomo_cluster.ec2.inventory import Instance, instances
from atomo_cluster.ec2.pricing import Prices, added, money, prices
from atomo_cluster.ec2.run import Run

HELP: Final = """\
  pytorch_ec2.py cost
  pytorch_ec2.py cost --json

Changes nothing. Computed from start times and the prices of this moment: the bill is in the AWS
console. Traffic to the internet and shared folders (EFS) are not in it."""


def arguments(parser: ArgumentParser) -> None:
    """This command has no options of its own."""


def run(run: Run) -> int:
    """Shows the costs."""
    records = [record for method in (True, False) for record in costs(run, method)]
    table = Table(title=f"{run.cluster.name}, owner {run.owned.owner}")
    for name in ("host", "type", "hours", "per hour", "so far", "until the fuse"):
        table.add_column(name, justify="right")
    for one in [*records, total(records)]:
        amounts = (money(one[key], 4 if key == "usd_per_hour" else 2) for key in KEYS)
        table.add_row(one["id"], one["type"], f"{one['hours']:.2f}", *amounts)
    run.show(table)
    run.tell({"hosts": records, **total(records)})
    return 0


KEYS: Final = ("usd_per_hour", "usd_so_far", "usd_until_fuse")


def costs(run: Run, spot: bool) -> list[dict[str, Any]]:
    """What each host costs that was bought this way."""
    hosts = [one for one in instances(run.aws, run.owned) if one.spot == spot]
    if not hosts:
        return []
    known = prices(run.aws, [one.type for one in hosts], spot, hosts[0].zone)
    return [record(run, one, known) for one in hosts]


def record(run: Run, host: Instance, known: Prices) -> dict[str, Any]:
    """What one host costs."""
    hours = (datetime.now(timezone.utc) - host.launched).total_seconds() / 3600
    hourly = known.host_hour(host.type, run.cluster.volume_gb, host.public_ip is not None)
    times = (1.0, hours, max(hours, host.max_hours))
    amounts = {key: None if hourly is None else hourly * time
               for key, time in zip(KEYS, times, strict=True)}  # fmt: skip
    return {"id": host.id, "type": host.type, "hours": hours, **amounts}


def total(records: list[dict[str, Any]]) -> dict[str, Any]:
    """The sum; unknown as soon as a part is."""
    sums = {key: added([one[key] for one in records]) for key in KEYS}
    return {"id": "all", "type": "", "hours": added([one["hours"] for one in records]), **sums}
