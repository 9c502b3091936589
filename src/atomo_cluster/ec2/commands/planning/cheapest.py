"""`cheapest`: finds instance types by capacity and price."""

from argparse import ArgumentParser
from dataclasses import asdict, dataclass
from typing import Final

from atomo_cluster.arguments import CONVERTERS
from atomo_cluster.ec2.invocation.run import Run
from atomo_cluster.ec2.invocation.tables import table
from atomo_cluster.ec2.money.prices import format_usd, list_prices, spot_market
from atomo_cluster.ec2.places.instance_types import InstanceType, all_instance_types
from atomo_cluster.ec2.settings.terms import WORKER
from atomo_cluster.errors import CloudError

HELP: Final = """\
  pytorch_ec2.py cheapest --gpus 1
  pytorch_ec2.py cheapest --vcpus 8 --memory 32 --worker-method on-demand --json

Lists types of the region that have at least so much, the cheapest first, as workers are bought.
Costs nothing and changes nothing. Prices are of one instance, without its disk; spot prices are
those of the cheapest zone. What AWS does not tell is unknown, and comes last."""
COLUMNS: Final = ("type", "vCPU", "GiB", "GPUs", "on demand", "spot", "zone")


@dataclass(frozen=True)
class PricedType:
    """A type with its prices in USD per hour; None: unknown."""

    type: str
    vcpus: int
    memory_gib: float
    gpus: int
    gpu: str
    architecture: str
    on_demand: float | None
    spot: float | None
    zone: str  # where spot instances are cheapest; empty: nowhere


def arguments(parser: ArgumentParser) -> None:
    whole, number = CONVERTERS[int], CONVERTERS[float]
    parser.add_argument("--gpus", type=whole, default=0, metavar="N", help="at least so many GPUs")
    parser.add_argument("--vcpus", type=whole, default=1, metavar="N", help="at least so many")
    parser.add_argument("--memory", type=number, default=0.0, metavar="GIB", help="at least, GiB")
    parser.add_argument("--limit", type=whole, default=10, metavar="N",
                        help="types to list (default 10)")  # fmt: skip


def run(run: Run) -> int:
    spot = run.cluster.spot(WORKER)
    fitting = [one for one in all_instance_types(run.aws) if fits(run, one, spot)]
    if not fitting:
        raise CloudError(f"no type of {run.aws.region} has so much; ask for less")
    offers = sorted(priced(run, fitting), key=lambda one: rank(one, spot))[: run.options.limit]
    shown = table(f"{run.aws.region}, per hour", COLUMNS, right=("vCPU", "GiB", *COLUMNS[4:6]))
    for one in offers:
        gpus = f"{one.gpus} {one.gpu.replace('NVIDIA ', '')}" if one.gpus else "-"
        zone = one.zone.removeprefix(run.aws.region) or "-"
        prices = (format_usd(one.on_demand, 4), format_usd(one.spot, 4), zone)
        shown.add_row(one.type, str(one.vcpus), f"{one.memory_gib:g}", gpus, *prices)
    run.show(shown)
    run.tell([asdict(one) for one in offers])
    return 0


def fits(run: Run, one: InstanceType, spot: bool) -> bool:
    """True if a type has the wanted capacity and is sold by the method of the workers."""
    asked = run.options
    enough = one.gpus >= asked.gpus and one.vcpus >= asked.vcpus and one.memory_gib >= asked.memory
    return enough and (one.spot or not spot)


def priced(run: Run, fitting: list[InstanceType]) -> list[PricedType]:
    """Adds prices to types."""
    listed, market = list_prices(run.aws), spot_market(run.aws, [one.type for one in fitting])
    best: dict[str, tuple[float, str]] = {}
    for (zone, type), usd in market.items():
        best[type] = min(best.get(type, (usd, zone)), (usd, zone))
    return [
        PricedType(one.type, one.vcpus, one.memory_gib, one.gpus, one.gpu, one.architecture,
              listed.get(one.type), *best.get(one.type, (None, "")))
        for one in fitting
    ]  # fmt: skip


def rank(one: PricedType, spot: bool) -> tuple[bool, float, float, int, str]:
    """Returns the sort key of an offer: the price, then the size."""
    usd = one.spot if spot else one.on_demand
    return usd is None, usd or 0.0, one.on_demand or 0.0, one.vcpus, one.type
