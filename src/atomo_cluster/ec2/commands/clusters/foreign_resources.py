"""Disks and addresses that someone attached to the cluster's hosts by hand: named, never deleted.

They lack the cluster's tags, and a disk may be anybody's data. They stay, and cost, when the hosts
end; `shutdown` names them until they are gone.
"""

from dataclasses import asdict, dataclass

from atomo_cluster.ec2.invocation.foreign_file import ForeignResource
from atomo_cluster.ec2.invocation.run import Run
from atomo_cluster.ec2.money.foreign import (
    attached_resources,
    recorded_resources,
    still_there,
    update_records,
)
from atomo_cluster.errors import CloudError, ConfigError, LeftBehind

__all__ = ["ForeignSearch", "check_foreign", "find_foreign", "record_foreign", "tell_foreign"]


@dataclass(frozen=True)
class ForeignSearch:
    """The resources attached by hand, and what AWS refuses to say of them."""

    resources: tuple[ForeignResource, ...]
    refusals: tuple[str, ...]


def find_foreign(run: Run) -> ForeignSearch:
    """Finds the resources attached now, and those of hosts that have ended."""
    attached, refusals = attached_resources(run)
    ids = {resource.id for resource in attached}
    try:
        recorded = recorded_resources(run)
    except CloudError as error:
        recorded = run.foreign
        refusals.append(f"AWS does not say which disks and addresses are left: {error}")
    return ForeignSearch(
        (*attached, *(resource for resource in recorded if resource.id not in ids)),
        tuple(refusals),
    )


def tell_foreign(run: Run) -> None:
    """Names the resources attached by hand."""
    search = find_foreign(run)
    for refusal in search.refusals:
        run.say(f"  {refusal}")
    for resource in search.resources:
        run.say(f"  {resource.line}: stays, and costs; {resource.remedy}")


def record_foreign(run: Run, resources: tuple[ForeignResource, ...]) -> None:
    """Writes the resources down, for a later `shutdown` and `cost`."""
    try:
        update_records(run, resources)
    except ConfigError as error:  # which keeps no host alive
        run.say(f"not written down: {error}")


def check_foreign(run: Run, search: ForeignSearch) -> None:
    """Raises LeftBehind if resources attached by hand outlive the hosts, or may do so.

    Args:
        run: the run, whose hosts have ended.
        search: the search before the end.
    """
    try:
        remaining = tuple(still_there(run, search.resources))
    except CloudError as error:
        run.say(f"AWS does not say which disks and addresses are left: {error}")
        remaining = search.resources
    record_foreign(run, remaining)
    if remaining:
        run.tell({"foreign": [asdict(resource) for resource in remaining]})
    texts = [f"left alone, and costing: {resource.line} ({resource.remedy}; `shutdown --forget "
             f"{resource.id}` where it is wanted)" for resource in remaining]  # fmt: skip
    texts += search.refusals
    if texts:
        raise LeftBehind(f"the hosts have ended; {'; '.join(texts)}")
