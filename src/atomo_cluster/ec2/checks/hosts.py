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
    known = require_types(site.aws, wanted(site))
    for type in spot_types(site.cluster):
        if not known[type].spot:
            return failed(f"{type} is not sold as spot; say --method on-demand")
    kinds = {machine.architecture for machine in known.values()}
    workers = {known[type].architecture for type in site.cluster.worker_types}
    if len(workers) > 1:
        return failed(
            f"worker types of {' and '.join(sorted(workers))}: one image serves all of them, so "
            "give alternative_types of one architecture"
        )
    return ok(f"{', '.join(sorted(known))} ({', '.join(sorted(kinds))})")


def zone(site: CheckContext) -> CheckResult:
    """Checks that a zone offers all types."""
    return ok(", ".join(zones(site.aws, site.cluster)))


def image(site: CheckContext) -> CheckResult:
    """Checks that the images exist and fit the processors."""
    known = require_types(site.aws, wanted(site))
    told = []
    for type in dict.fromkeys((site.cluster.master_type, site.cluster.worker_type)):
        found = choose_image(site.aws, site.owned, site.cluster.image_id, known[type])
        if found.architecture != known[type].architecture:
            return failed(
                f"{found.id} ({found.name}) is for {found.architecture}, and {type} is "
                f"{known[type].architecture}; say image_id: latest, or give one that fits"
            )
        told.append(f"{type}: {found.id} ({found.name})")
    return ok("; ".join(told))


def price(site: CheckContext) -> CheckResult:
    """Checks spot prices against `spot_price`."""
    types = tuple(dict.fromkeys(spot_types(site.cluster)))
    if not types:
        return ok("on-demand prices are fixed")
    chosen = zones(site.aws, site.cluster)
    told, limit = [], site.cluster.spot_price
    known = spot_prices(site.aws, types, chosen)
    for type in types:
        now = lowest(*(known.get((zone, type)) for zone in chosen))
        if now is None:
            return unknown(f"AWS lists no spot price of {type} in {', '.join(chosen)}")
        if limit is not None and now > limit:
            return failed(
                f"{type} costs {format_usd(now, 4)} an hour now, and spot_price is "
                f"{format_usd(limit, 4)}; "
                "raise it, leave it empty, or choose another zone or type"
            )
        told.append(f"{type} {format_usd(now, 4)}")
    return ok(", ".join(told) + " per hour now")


def placement(site: CheckContext) -> CheckResult:
    """Checks that the types support placement groups and EFA, if the settings use them."""
    known = require_types(site.aws, wanted(site)).values()
    if site.cluster.placement_group and (other := lacking(known, "packs")):
        return failed(f"{other} cannot be in a cluster placement group; say placement_group: no")
    if site.cluster.efa and (other := lacking(known, "efa")):
        return failed(f"{other} has no Elastic Fabric Adapter; say efa: no, or take another type")
    asked = [name for name in ("placement_group", "efa") if getattr(site.cluster, name)]
    return ok(" and ".join(asked) or "neither placement group nor EFA is asked for")


def lacking(known: Iterable[InstanceType], ability: str) -> str:
    """Names the types that lack an ability."""
    return ", ".join(machine.type for machine in known if not getattr(machine, ability))
