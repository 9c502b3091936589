"""A search for all living resources with certain tags."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from atomo_cluster.ec2.aws.client import Aws
from atomo_cluster.ec2.aws.inventory import LIVE, STATES
from atomo_cluster.ec2.aws.profiles import PROFILE, is_denied, profiles
from atomo_cluster.errors import CloudError

__all__ = ["Resource", "SearchResult", "find_resources", "list_resources"]


@dataclass(frozen=True)
class Resource:
    """A resource with the tags."""

    kind: str  # EC2's name of it, e.g. volume
    id: str
    state: str = ""


@dataclass(frozen=True)
class SearchResult:
    """The resources found, and the errors of the search."""

    things: tuple[Resource, ...]  # in the order in which they can be deleted
    errors: tuple[str, ...]  # what AWS did not say, and why; none: this is all there is
    unseen: tuple[str, ...] = ()  # free things that the identity may not look at, and why

    def complete(self) -> list[Resource]:
        """Returns the resources.

        Raises:
            CloudError: the search is incomplete.
        """
        if self.errors:
            raise CloudError("; ".join(self.errors))
        return list(self.things)


def list_resources(aws: Aws, filters: list[dict[str, Any]]) -> list[Resource]:
    """Lists all living resources with the tags, in the order in which they can be deleted.

    Raises:
        CloudError: the search is incomplete.
    """
    return find_resources(aws, filters).complete()


def find_resources(
    aws: Aws, filters: list[dict[str, Any]], makes_roles: bool = False
) -> SearchResult:
    """Searches for all living resources with the tags.

    The most costly kinds are always searched for. The others are searched for only if the list of
    all tagged resources has their kind, since that list also contains resources deleted long ago.
    If AWS does not return that list, every kind is searched for. If AWS does not describe a kind,
    the list replaces the description. With `makes_roles` a denied look at roles is an error;
    otherwise they are unseen: other settings may have made some.
    """
    errors, unseen = list[str](), list[str]()
    try:
        ids_by_kind, kinds = tagged_ids(aws, filters), ALWAYS
    except CloudError as error:
        errors.append(str(error))
        ids_by_kind, kinds = (
            {},
            tuple(kind for kind in KINDS if kind != "fleet"),
        )  # found by list alone
    resources: list[Resource] = []
    for kind, listed in KINDS.items():
        ids = sorted(ids_by_kind.get(kind, ()))
        if kind not in kinds and not ids:
            continue
        try:
            resources += listed(aws, filters, ids)
        except CloudError as error:
            errors.append(str(error))
            resources += [Resource(kind, id, UNSEEN) for id in ids]
    try:
        resources += [Resource(PROFILE, name) for name in profiles(aws, filters)]
    except CloudError as error:
        if is_denied(error) and not makes_roles:
            unseen.append(f"roles and instance profiles in IAM: {error}")
        else:
            errors.append(str(error))
    foreign = {kind: ids for kind, ids in ids_by_kind.items() if kind not in KINDS}
    resources += [Resource(kind, id, "not made here") for kind in foreign for id in foreign[kind]]
    return SearchResult(tuple(resources), tuple(errors), tuple(unseen))


def tagged_ids(aws: Aws, filters: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Lists the identifiers of everything that ever had these tags, by kind."""
    tag_values = {tag["Name"].removeprefix("tag:"): tag["Values"][0] for tag in filters}
    query = [
        {"Name": "key", "Values": list(tag_values)},
        {"Name": "value", "Values": list(tag_values.values())},
    ]
    tags: dict[tuple[str, str], int] = {}
    for tag in aws.pages("ec2.describe_tags", "Tags", Filters=query):
        if tag_values.get(tag["Key"]) == tag["Value"]:
            resource = (SPELLINGS.get(tag["ResourceType"], tag["ResourceType"]), tag["ResourceId"])
            tags[resource] = tags.get(resource, 0) + 1
    ids_by_kind: dict[str, list[str]] = {}
    for (kind, id), count in tags.items():
        if count == len(tag_values):
            ids_by_kind.setdefault(kind, []).append(id)
    return ids_by_kind


Listed = Callable[[Aws, list[dict[str, Any]], list[str]], list[Resource]]
Filters = list[dict[str, Any]]


def fleets(aws: Aws, filters: Filters, ids: list[str]) -> list[Resource]:
    """Lists the fleets that are not deleted. Fleets that EC2 no longer knows are gone."""
    try:
        described = list(aws.pages("ec2.describe_fleets", "Fleets", FleetIds=ids))
    except CloudError as error:
        if "NotFound" not in error.code and "NotExist" not in error.code:
            raise
        return []
    return [
        Resource("fleet", fleet["FleetId"], fleet["FleetState"])
        for fleet in described
        if fleet["FleetId"] in ids and not fleet["FleetState"].startswith("deleted")
    ]


def spot_requests(aws: Aws, filters: Filters, ids: list[str]) -> list[Resource]:
    """Lists the requests that can still start instances."""
    conditions = [*filters, {"Name": "state", "Values": ["open", "active"]}]
    action, key = "ec2.describe_spot_instance_requests", "SpotInstanceRequests"
    return [
        Resource("spot-instances-request", request["SpotInstanceRequestId"], request["State"])
        for request in aws.pages(action, key, Filters=conditions)
    ]


def living_instances(aws: Aws, filters: Filters, ids: list[str]) -> list[Resource]:
    """Lists the instances that cost now or may cost again."""
    conditions = [*filters, {"Name": STATES, "Values": [*LIVE, "shutting-down"]}]
    return [
        Resource("instance", host["InstanceId"], host["State"]["Name"])
        for batch in aws.pages("ec2.describe_instances", "Reservations", Filters=conditions)
        for host in batch["Instances"]
    ]


def simple(kind: str, action: str, key: str, identifier: str, state: str = "") -> Listed:
    """Returns a lister for a kind whose description EC2 filters by tags."""

    def listed(aws: Aws, filters: Filters, ids: list[str]) -> list[Resource]:
        described = aws.pages(f"ec2.{action}", key, Filters=filters)
        return [
            Resource(kind, description[identifier], str(description.get(state, "")))
            for description in described
        ]

    return listed


# By EC2's own names of kinds; what asks for instances comes before them, what they use after.
KINDS: Final[Mapping[str, Listed]] = {
    "fleet": fleets,
    "spot-instances-request": spot_requests,
    "instance": living_instances,
} | {
    kind: simple(kind, action, key, identifier, state)
    for kind, action, key, identifier, state in (
        ("volume", "describe_volumes", "Volumes", "VolumeId", "State"),
        ("network-interface", "describe_network_interfaces", "NetworkInterfaces",
         "NetworkInterfaceId", "Status"),
        ("launch-template", "describe_launch_templates", "LaunchTemplates", "LaunchTemplateId", ""),
        ("placement-group", "describe_placement_groups", "PlacementGroups", "GroupName", "State"),
        ("key-pair", "describe_key_pairs", "KeyPairs", "KeyName", ""),
        ("security-group", "describe_security_groups", "SecurityGroups", "GroupId", ""),
    )
}  # fmt: skip
SPELLINGS: Final = {"spot-instance-request": "spot-instances-request"}  # moto's is the first
UNSEEN: Final = "which AWS does not describe"
ALWAYS: Final[tuple[str, ...]] = ("spot-instances-request", "instance", "volume")
