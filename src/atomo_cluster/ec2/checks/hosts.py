"""Checks of the hosts to launch: types, zone, image, price, placement."""

from collections.abc import Iterable

from atomo_cluster.ec2.checks.results import CheckContext, CheckResult, failed, ok, unknown
from atomo_cluster.ec2.images.baked import choose_image
from atomo_cluster.ec2.launch.plan import spot_types
from atomo_cluster.ec2.money.prices import format_usd, lowest, spot_prices
from atomo_cluster.ec2.places.instance_types import InstanceType
from atomo_cluster.ec2.places.zones import require_types, zones

__all__ = ["image", "placement", "price", "types", "zone"]


def wanted(site: CheckContext) -> tuple[str, ...]:
    """Lists all types that may be launched."""
    return (site.cluster.master_type, *site.cluster.worker_types)


def types(site: CheckContext) -> CheckResult:
    """Checks that the region offers the types, with the methods of the settings."""
    types_by_name = require_types(site.aws, wanted(site))
    for type in spot_types(site.cluster):
        if not types_by_name[type].spot:
            return failed(f"{type} is not sold as spot; say --method on-demand")
    kinds = {machine.architecture for machine in types_by_name.values()}
    workers = {types_by_name[type].architecture for type in site.cluster.worker_types}
    if len(workers) > 1:
        return failed(
            f"worker types of {' and '.join(sorted(workers))}: one image serves all of them, so "
            "give alternative_types of one architecture"
        )
    return ok(f"{', '.join(sorted(types_by_name))} ({', '.join(sorted(kinds))})")


def zone(site: CheckContext) -> CheckResult:
    """Checks that a zone offers all types."""
    return ok(", ".join(zones(site.aws, site.cluster)))


def image(site: CheckContext) -> CheckResult:
    """Checks that the images exist and fit the processors."""
    types_by_name = require_types(site.aws, wanted(site))
    texts = []
    for type in dict.fromkeys((site.cluster.master_type, site.cluster.worker_type)):
        chosen = choose_image(site.aws, site.owned, site.cluster.image_id, types_by_name[type])
        if chosen.architecture != types_by_name[type].architecture:
            return failed(
                f"{chosen.id} ({chosen.name}) is for {chosen.architecture}, and {type} is "
                f"{types_by_name[type].architecture}; say image_id: latest, or give one that fits"
            )
        texts.append(f"{type}: {chosen.id} ({chosen.name})")
    return ok("; ".join(texts))


def price(site: CheckContext) -> CheckResult:
    """Checks spot prices against `spot_price`."""
    types = tuple(dict.fromkeys(spot_types(site.cluster)))
    if not types:
        return ok("on-demand prices are fixed")
    chosen = zones(site.aws, site.cluster)
    texts, limit = [], site.cluster.spot_price
    market = spot_prices(site.aws, types, chosen)
    for type in types:
        now = lowest(*(market.get((zone, type)) for zone in chosen))
        if now is None:
            return unknown(f"AWS lists no spot price of {type} in {', '.join(chosen)}")
        if limit is not None and now > limit:
            return failed(
                f"{type} costs {format_usd(now, 4)} an hour now, and spot_price is "
                f"{format_usd(limit, 4)}; "
                "raise it, leave it empty, or choose another zone or type"
            )
        texts.append(f"{type} {format_usd(now, 4)}")
    return ok(", ".join(texts) + " per hour now")


def placement(site: CheckContext) -> CheckResult:
    """Checks that the types support placement groups and EFA, if the settings use them."""
    machines = require_types(site.aws, wanted(site)).values()
    if site.cluster.placement_group and (unsuited := lacking(machines, "packs")):
        return failed(f"{unsuited} cannot be in a cluster placement group; say placement_group: no")
    if site.cluster.efa and (unsuited := lacking(machines, "efa")):
        return failed(
            f"{unsuited} has no Elastic Fabric Adapter; say efa: no, or take another type"
        )
    settings = [name for name in ("placement_group", "efa") if getattr(site.cluster, name)]
    return ok(" and ".join(settings) or "neither placement group nor EFA is asked for")


def lacking(machines: Iterable[InstanceType], ability: str) -> str:
    """Names the types that lack an ability."""
    return ", ".join(machine.type for machine in machines if not getattr(machine, ability))
