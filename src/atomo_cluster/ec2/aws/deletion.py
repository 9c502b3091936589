"""Deleting all resources with certain tags, until a search for them finds nothing alive.

Instances cost the most, so each round terminates them first, whatever AWS answers to the rest.
Refusals are collected, and the work goes on.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from atomo_cluster.ec2.aws.client import Aws
from atomo_cluster.ec2.aws.profiles import PROFILE, remove_profile
from atomo_cluster.ec2.aws.search import Resource, SearchResult, find_resources
from atomo_cluster.errors import CloudError

__all__ = [
    "END_S",
    "delete",
    "delete_until_gone",
    "refusals",
    "remains",
    "resource_line",
    "terminate_without_waiting",
]

END_S: Final = 900  # a large GPU host may take ten minutes to go
ROUNDS: Final = 12  # what something else still uses goes in a later round
STUCK: Final = 3  # rounds that change nothing and fail alike, after which another would as well
BETWEEN_S: Final = 5.0
LATER: Final = ("DependencyViolation", "VolumeInUse", "InvalidPlacementGroup.InUse")
GONE: Final = ("NoSuchEntity", "NotFound", "NotExist", "Unknown", "InvalidSpotInstanceRequestID")
Say = Callable[[str], None]
Filters = list[dict[str, Any]]


def delete_until_gone(
    aws: Aws,
    filters: Filters,
    say: Say,
    pause: Callable[[float], None] = time.sleep,
    makes_roles: bool = False,
) -> SearchResult:
    """Deletes everything that matches the filters; returns the remains, with the refusals of AWS.

    Costly resources go first and are waited for, since the others are in use by them.
    """
    seen: list[SearchResult] = []
    while True:
        remaining = find_resources(aws, filters, makes_roles)
        if not remaining.errors and not any(
            resource.kind in {*COSTLY, *ONE_BY_ONE, PROFILE} for resource in remaining.things
        ):
            return remaining
        if len(seen) == ROUNDS or stuck(seen):
            errors = (*remaining.errors, *seen[-1].errors)
            return replace(remaining, errors=tuple(dict.fromkeys(errors)))
        failures = delete(aws, due(remaining.things), say)
        seen.append(replace(remaining, errors=(*remaining.errors, *failures)))
        if seen[-2:] == [seen[-1]] * 2:
            pause(BETWEEN_S)


def terminate_without_waiting(aws: Aws, filters: Filters) -> list[str]:
    """Terminates hosts and cancels their requests, without waiting for the end.

    Fleets stay for `delete_until_gone`: a completed fleet requests no more instances.

    Returns:
        The refusals to delete launch templates, which cost nothing.

    Raises:
        CloudError: AWS refused to end what costs, or the list of resources is incomplete.
    """
    resources = find_resources(aws, filters).complete()
    failures = {
        kind: delete_kind(aws, kind, ids)
        for kind in ("instance", "spot-instances-request", "launch-template")
        if (ids := [resource.id for resource in resources if resource.kind == kind])
    }
    free = failures.pop("launch-template", [])
    if costly := [refusal for texts in failures.values() for refusal in texts]:
        raise CloudError("; ".join(costly))
    return free


def stuck(seen: Sequence[SearchResult]) -> bool:
    """True if the last rounds changed nothing and failed alike, so another round is useless."""
    last = list(seen[-STUCK:])
    return bool(last) and bool(last[0].errors) and last == [last[0]] * STUCK


def due(resources: Sequence[Resource]) -> list[Resource]:
    """Returns the resources that can be deleted now; while instances exist, only costly ones."""
    if any(resource.kind == "instance" for resource in resources):
        return [resource for resource in resources if resource.kind in COSTLY]
    return list(resources)


def delete(aws: Aws, resources: Sequence[Resource], say: Say) -> list[str]:
    """Deletes resources kind by kind; returns the refusals of AWS."""
    failures: dict[str, list[str]] = {}
    for kind in (*COSTLY, *ONE_BY_ONE, PROFILE):
        ids = [resource.id for resource in resources if resource.kind == kind]
        if ids:
            say(f"deleting {kind} {', '.join(ids)} ...")
            failures[kind] = delete_kind(aws, kind, ids)
    if failures.get("instance") == []:  # they end while the rest is told to
        ids = [resource.id for resource in resources if resource.kind == "instance"]
        failures["instance"] = refusals_of(await_end, aws, ids)
    return [text for texts in failures.values() for text in texts]


def delete_kind(aws: Aws, kind: str, ids: list[str]) -> list[str]:
    """Deletes resources of one kind; returns the refusals of AWS."""
    if kind in COSTLY:
        return refusals_of(COSTLY[kind], aws, ids)
    if kind == PROFILE:
        return [text for id in ids for text in refusals_of(remove_profile, aws, id)]
    return [text for id in ids for text in refusals_of(delete_one, aws, kind, id)]


def refusals_of(delete: Callable[..., None], *arguments: Aws | str | list[str]) -> list[str]:
    """Returns the refusal of AWS, unless the resource is gone or has to wait for another."""
    try:
        delete(*arguments)
    except CloudError as error:
        forgiven = error.code in LATER or any(word in error.code for word in GONE)
        return [] if forgiven else [str(error)]
    return []


def delete_one(aws: Aws, kind: str, id: str) -> None:
    """Deletes a resource of a kind that EC2 deletes one at a time."""
    action, argument = ONE_BY_ONE[kind]
    aws.call(action, **{argument: id})


def cancel(aws: Aws, ids: list[str]) -> None:
    """Cancels spot requests, so that they do not replace terminated instances."""
    aws.call("ec2.cancel_spot_instance_requests", SpotInstanceRequestIds=ids)


def delete_fleets(aws: Aws, ids: list[str]) -> None:
    """Deletes fleets and their instances."""
    aws.call("ec2.delete_fleets", FleetIds=ids, TerminateInstances=True)


def terminate(aws: Aws, ids: list[str]) -> None:
    """Terminates instances.

    EC2 refuses the whole call if an instance is protected or gone; then each gets its own call.
    """
    try:
        aws.call("ec2.terminate_instances", InstanceIds=ids)
    except CloudError as error:
        if len(ids) == 1:
            raise
        refused = [again for id in ids for again in refusals_of(terminate, aws, [id])]
        if refused:
            raise CloudError("; ".join(refused)) from error


def await_end(aws: Aws, ids: list[str]) -> None:
    """Waits until instances have terminated."""
    aws.wait("instance_terminated", END_S, InstanceIds=ids)


COSTLY: Final[Mapping[str, Callable[[Aws, list[str]], None]]] = {
    "instance": terminate,
    "spot-instances-request": cancel,
    "fleet": delete_fleets,
}
COSTS: Final = (*COSTLY, "volume")
ONE_BY_ONE: Final[Mapping[str, tuple[str, str]]] = {
    "volume": ("ec2.delete_volume", "VolumeId"),
    "network-interface": ("ec2.delete_network_interface", "NetworkInterfaceId"),
    "launch-template": ("ec2.delete_launch_template", "LaunchTemplateId"),
    "placement-group": ("ec2.delete_placement_group", "GroupName"),
    "key-pair": ("ec2.delete_key_pair", "KeyName"),
    "security-group": ("ec2.delete_security_group", "GroupId"),
}


def remains(result: SearchResult) -> str:
    """Formats the remains, costly ones first, and the refusals of AWS."""
    costly = [resource for resource in result.things if resource.kind in COSTS]
    free = [resource for resource in result.things if resource.kind not in COSTS]
    parts = [(costly, "still there, and costing"), (free, "still there")]
    texts = [f"{words}: {', '.join(map(resource_line, group))}" for group, words in parts if group]
    return "; ".join([*texts, *(f"AWS: {error}" for error in result.errors)])


def resource_line(resource: Resource) -> str:
    """Formats a resource for lists."""
    return f"{resource.kind} {resource.id} {resource.state}".rstrip()


def refusals(aws: Aws, resources: list[Resource]) -> dict[str, str]:
    """Maps the termination to the error that DryRun predicts; empty if it would succeed."""
    ids = [resource.id for resource in resources if resource.kind == "instance"]
    if not ids:
        return {}
    refusal = aws.refusal("ec2.terminate_instances", InstanceIds=ids)
    return {"ec2.terminate_instances": str(refusal or "")}
