"""Launch plans of all accepted regions, cheapest first."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rich.table import Table

from atomo_cluster.ec2.aws.inventory import Instance
from atomo_cluster.ec2.invocation.run import Run
from atomo_cluster.ec2.invocation.tables import table
from atomo_cluster.ec2.launch.capacity import first_available
from atomo_cluster.ec2.launch.launching import launch
from atomo_cluster.ec2.launch.plan import Plan, make_plan
from atomo_cluster.ec2.launch.replacements import show_replacements
from atomo_cluster.ec2.money.prices import format_usd
from atomo_cluster.errors import CloudError, ClusterError, ConfigError, NotReady

T = TypeVar("T")
__all__ = [
    "Offer",
    "checked_offers",
    "launch_first_available",
    "offers",
    "offers_record",
    "offers_table",
]


@dataclass(frozen=True)
class Offer:
    """A plan in a region."""

    run: Run
    plan: Plan

    @property
    def region(self) -> str:
        return self.run.aws.region


def offers(run: Run) -> list[Offer]:
    """Makes a plan per region, cheapest first; if the cluster has hosts, only for their region.

    Raises:
        ConfigError: no region has the wanted types; the message is that of the first region. Or
            the cluster has hosts in another region.
    """
    runs = run.accepted()
    if occupied := run.occupied:
        check_accepted(run, occupied)
        runs = [occupied]
    unsorted = collect_offers(run, runs, make_offer)
    return sorted(unsorted, key=lambda offer: (offer.plan.hourly is None, offer.plan.hourly or 0.0))


def make_offer(run: Run) -> Offer:
    """Makes the plan of a region."""
    return Offer(run, show_replacements(run.aws, make_plan(run.aws, run.cluster, run.owned)))


def check_accepted(run: Run, occupied: Run) -> None:
    """Raises ConfigError if the settings do not name the region in which the cluster has hosts."""
    region, regions = occupied.aws.region, run.given.all_regions
    if region not in regions:
        raise ConfigError(
            f"{run.given.name} has hosts in {region}, as the ledger says, and the settings name "
            f"{', '.join(regions)}: --region {region} goes on with them, --region {regions[0]} "
            "launches a second cluster of this name"
        )


def checked_offers(
    run: Run, unchecked: Sequence[Offer], check: Callable[[Run, Plan], None]
) -> list[Offer]:
    """Returns the offers that pass the checks of a launch.

    Raises:
        NotReady: none passes; the message is that of the first offer.
    """

    def pass_on(offer: Offer) -> Offer:
        check(offer.run, offer.plan)
        return offer

    return collect_offers(run, unchecked, pass_on)


def collect_offers(run: Run, items: Sequence[T], act: Callable[[T], Offer]) -> list[Offer]:
    """Collects the results of `act`; reports and drops the items that fail, unless all fail."""
    collected: list[Offer] = []
    refused: list[ClusterError] = []
    for item in items:
        try:
            collected.append(act(item))
        except (ConfigError, NotReady) as reason:
            refused.append(reason)
    if not collected:
        raise refused[0]
    for error in refused:
        run.say(f"left out: {error}")
    return collected


def offers_table(listed: Sequence[Offer]) -> Table:
    """Returns the table of regions."""
    columns = ("order", "region", "zone", "per hour", "at most")
    shown: Table = table("regions, tried until one has the capacity", columns, right=columns[3:])
    for number, offer in enumerate(listed, 1):
        hourly, bound = format_usd(offer.plan.hourly, 4), format_usd(offer.plan.total)
        shown.add_row(str(number), offer.region, offer.plan.subnet.zone, hourly, bound)
    return shown


def offers_record(listed: Sequence[Offer]) -> list[dict[str, object]]:
    """Returns the regions as records for `--json`."""
    return [{"region": offer.region, "zone": offer.plan.subnet.zone,
             "usd_per_hour": offer.plan.hourly, "usd_until_fuse": offer.plan.total}
            for offer in listed]  # fmt: skip


def launch_first_available(
    run: Run, candidates: Sequence[Offer], cidr: str
) -> tuple[Offer, list[Instance]]:
    """Launches by one offer after another, until a region has the capacity.

    Raises:
        CloudError: no region has capacity, or AWS refused for another reason; all is as before.
        LeftBehind: a resource of a failed launch could not be deleted.
    """

    def report(error: CloudError, offer: Offer, following: Offer) -> None:
        run.say(f"{offer.region} has no capacity ({error.code}); next: {following.region}")

    def attempt(offer: Offer) -> list[Instance]:
        return launch(offer.run.aws, offer.plan, cidr, run.say)

    return first_available(candidates, attempt, report)
