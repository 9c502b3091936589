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
those of the cheapest zone. Unknown prices come last."""
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
    machines = all_instance_types(run.aws)
    fitting = [machine for machine in machines if fits(run, machine, spot)]
    if not fitting:
        raise CloudError(f"no type of {run.aws.region} has so much; ask for less")
    offers = sorted(priced(run, fitting), key=lambda offer: rank(offer, spot))[: run.options.limit]
    shown = table(f"{run.aws.region}, per hour", COLUMNS, right=("vCPU", "GiB", *COLUMNS[4:6]))
    for offer in offers:
        gpus = f"{offer.gpus} {offer.gpu.replace('NVIDIA ', '')}" if offer.gpus else "-"
        zone = offer.zone.removeprefix(run.aws.region) or "-"
        prices = (format_usd(offer.on_demand, 4), format_usd(offer.spot, 4), zone)
        shown.add_row(offer.type, str(offer.vcpus), f"{offer.memory_gib:g}", gpus, *prices)
    run.show(shown)
    run.tell([asdict(offer) for offer in offers])
    return 0


def fits(run: Run, machine: InstanceType, spot: bool) -> bool:
    """True if a type has the wanted capacity and is sold by the method of the workers."""
    options = run.options
    enough = (
        machine.gpus >= options.gpus
        and machine.vcpus >= options.vcpus
        and machine.memory_gib >= options.memory
    )
    return enough and (machine.spot or not spot)


def priced(run: Run, fitting: list[InstanceType]) -> list[PricedType]:
    """Adds prices to types."""
    listed = list_prices(run.aws)
    market = spot_market(run.aws, [machine.type for machine in fitting])
    best: dict[str, tuple[float, str]] = {}
    for (zone, type), usd in market.items():
        best[type] = min(best.get(type, (usd, zone)), (usd, zone))
    return [
        PricedType(machine.type, machine.vcpus, machine.memory_gib, machine.gpus, machine.gpu,
                   machine.architecture, listed.get(machine.type),
                   *best.get(machine.type, (None, "")))
        for machine in fitting
    ]  # fmt: skip


def rank(offer: PricedType, spot: bool) -> tuple[bool, float, float, int, str]:
    """Returns the sort key of an offer: the price, then the size."""
    usd = offer.spot if spot else offer.on_demand
    return usd is None, usd or 0.0, offer.on_demand or 0.0, offer.vcpus, offer.type
