"""Deleting what carries certain tags, until a search for them finds nothing that is alive."""

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from atomo_cluster.ec2.aws import Aws
from atomo_cluster.ec2.inventory import Thing, everything
from atomo_cluster.errors import CloudError

__all__ = ["refusals", "remove"]

END_S: Final = 900  # a large GPU host may take ten minutes to go
ROUNDS: Final = 12  # what something else still uses goes in a later round
BETWEEN_S: Final = 5.0
LATER: Final = ("DependencyViolation", "VolumeInUse", "InvalidPlacementGroup.InUse")
GONE: Final = ("NotFound", "NotExist", "Unknown", "InvalidSpotInstanceRequestID")
Say = Callable[[str], None]
Filters = list[dict[str, Any]]


def remove(
    aws: Aws, filters: Filters, say: Say, pause: Callable[[float], None] = time.sleep
) -> list[Thing]:
    """Deletes all that the filters find, and returns what is still there in the end.

    What costs goes first, and is waited for: the rest is what it used.
    """
    before: list[Thing] = []
    for _ in range(ROUNDS):
        left = everything(aws, filters)
        if all(thing.kind not in {*COSTLY, *ONE_BY_ONE} for thing in left):
            return left
        if left == before:
            pause(BETWEEN_S)
        before = left
        costly = [thing for thing in left if thing.kind in COSTLY]
        delete(aws, costly or left, say)
    return everything(aws, filters)


def delete(aws: Aws, things: list[Thing], say: Say) -> None:
    """Deletes things, kind by kind, as far as they can be deleted by now."""
    for kind in (*COSTLY, *ONE_BY_ONE):
        ids = [thing.id for thing in things if thing.kind == kind]
        if not ids:
            continue
        say(f"deleting {kind} {', '.join(ids)} ...")
        if kind in COSTLY:
            forgiven(COSTLY[kind], aws, ids)
        else:
            for id in ids:
                forgiven(delete_one, aws, kind, id)


def forgiven(delete: Callable[..., None], *what: Aws | str | list[str]) -> None:
    """Deletes something that may be gone already, or may have to wait for another thing to go."""
    try:
        delete(*what)
    except CloudError as error:
        if error.code not in LATER and not any(word in error.code for word in GONE):
            raise


def delete_one(aws: Aws, kind: str, id: str) -> None:
    """Deletes a thing that EC2 deletes one at a time."""
    action, argument = ONE_BY_ONE[kind]
    aws.call(action, **{argument: id})


def cancel(aws: Aws, ids: list[str]) -> None:
    """Cancels spot requests, so that nothing comes after what is terminated."""
    aws.call("ec2.cancel_spot_instance_requests", SpotInstanceRequestIds=ids)


def delete_fleets(aws: Aws, ids: list[str]) -> None:
    """Deletes fleets and the instances that they keep."""
    aws.call("ec2.delete_fleets", FleetIds=ids, TerminateInstances=True)


def terminate(aws: Aws, ids: list[str]) -> None:
    """Ends instances, and waits until they have ended."""
    aws.call("ec2.terminate_instances", InstanceIds=ids)
    aws.wait("instance_terminated", END_S, InstanceIds=ids)


# The order matters: what asks for instances goes before them.
COSTLY: Final[Mapping[str, Callable[[Aws, list[str]], None]]] = {
    "spot-instances-request": cancel,
    "fleet": delete_fleets,
    "instance": terminate,
}
ONE_BY_ONE: Final[Mapping[str, tuple[str, str]]] = {
    "volume": ("ec2.delete_volume", "VolumeId"),
    "network-interface": ("ec2.delete_network_interface", "NetworkInterfaceId"),
    "launch-template": ("ec2.delete_launch_template", "LaunchTemplateId"),
    "placement-group": ("ec2.delete_placement_group", "GroupName"),
    "key-pair": ("ec2.delete_key_pair", "KeyName"),
    "security-group": ("ec2.delete_security_group", "GroupId"),
}


def refusals(aws: Aws, things: list[Thing]) -> dict[str, str]:
    """What EC2's DryRun says to ending the instances; empty words: it would do it."""
    ids = [thing.id for thing in things if thing.kind == "instance"]
    if not ids:
        return {}
    refusal = aws.refusal("ec2.terminate_instances", InstanceIds=ids)
    return {"ec2.terminate_instances": str(refusal or "")}
