"""Deleting what carries certain tags, until a search for them finds nothing that is alive.

Instances cost the most, so they are told to end first of all, in every round, whatever AWS says to
the rest. What AWS refuses is collected, and everything else is gone on with.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from atomo_cluster.ec2.aws import Aws
from atomo_cluster.ec2.profile import PROFILE, remove_profile
from atomo_cluster.ec2.survey import Survey, Thing, survey
from atomo_cluster.errors import CloudError

__all__ = ["END_S", "abandon", "named", "refusals", "remains", "remove"]

END_S: Final = 900  # a large GPU host may take ten minutes to go
ROUNDS: Final = 12  # what something else still uses goes in a later round
STUCK: Final = 3  # rounds that change nothing and fail alike, after which another would as well
BETWEEN_S: Final = 5.0
LATER: Final = ("DependencyViolation", "VolumeInUse", "InvalidPlacementGroup.InUse")
GONE: Final = ("NoSuchEntity", "NotFound", "NotExist", "Unknown", "InvalidSpotInstanceRequestID")
Say = Callable[[str], None]
Filters = list[dict[str, Any]]


def remove(
    aws: Aws, filters: Filters, say: Say, pause: Callable[[float], None] = time.sleep
) -> Survey:
    """Deletes all that the filters find; what is still there in the end, and what AWS refused.

    What costs goes first, and is waited for: the rest is what it used.
    """
    seen: list[Survey] = []
    while True:
        found = survey(aws, filters)
        if not found.errors and not any(
            one.kind in {*COSTLY, *ONE_BY_ONE, PROFILE} for one in found.things
        ):
            return found
        if len(seen) == ROUNDS or stuck(seen):
            errors = (*found.errors, *seen[-1].errors)
            return Survey(found.things, tuple(dict.fromkeys(errors)))
        failures = delete(aws, due(found.things), say)
        seen.append(Survey(found.things, (*found.errors, *failures)))
        if seen[-2:] == [seen[-1]] * 2:
            pause(BETWEEN_S)


def abandon(aws: Aws, filters: Filters) -> None:
    """Tells hosts, and what asks for them, to end, and does not wait until they have.

    Fleets stay for `remove`: one that is done asks for nothing more.

    Raises:
        CloudError: AWS refused some of it, or did not say what there is.
    """
    things = survey(aws, filters).complete()
    failures = [
        told
        for kind in ("instance", "spot-instances-request", "launch-template")
        if (ids := [thing.id for thing in things if thing.kind == kind])
        for told in delete_kind(aws, kind, ids)
    ]
    if failures:
        raise CloudError("; ".join(failures))


def stuck(seen: Sequence[Survey]) -> bool:
    """Whether the last rounds changed nothing and failed alike, so that another would as well."""
    last = list(seen[-STUCK:])
    return bool(last) and bool(last[0].errors) and last == [last[0]] * STUCK


def due(things: Sequence[Thing]) -> list[Thing]:
    """What can be deleted by now: while there are instances, not what they use."""
    if any(thing.kind == "instance" for thing in things):
        return [thing for thing in things if thing.kind in COSTLY]
    return list(things)


def delete(aws: Aws, things: Sequence[Thing], say: Say) -> list[str]:
    """Deletes things, kind by kind, as far as they can be deleted by now; what AWS refused."""
    failures: dict[str, list[str]] = {}
    for kind in (*COSTLY, *ONE_BY_ONE, PROFILE):
        ids = [thing.id for thing in things if thing.kind == kind]
        if ids:
            say(f"deleting {kind} {', '.join(ids)} ...")
            failures[kind] = delete_kind(aws, kind, ids)
    if failures.get("instance") == []:  # they end while the rest is told to
        ids = [thing.id for thing in things if thing.kind == "instance"]
        failures["instance"] = attempted(await_end, aws, ids)
    return [told for one in failures.values() for told in one]


def delete_kind(aws: Aws, kind: str, ids: list[str]) -> list[str]:
    """Deletes things of a kind; what AWS refused."""
    if kind in COSTLY:
        return attempted(COSTLY[kind], aws, ids)
    if kind == PROFILE:
        return [told for id in ids for told in attempted(remove_profile, aws, id)]
    return [told for id in ids for told in attempted(delete_one, aws, kind, id)]


def attempted(delete: Callable[..., None], *what: Aws | str | list[str]) -> list[str]:
    """Why AWS refused, if it did; not where the thing is gone, or has to wait for another."""
    try:
        delete(*what)
    except CloudError as error:
        forgiven = error.code in LATER or any(word in error.code for word in GONE)
        return [] if forgiven else [str(error)]
    return []


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
    """Has instances end. EC2 refuses all of them for one that is protected or gone: then singly."""
    try:
        aws.call("ec2.terminate_instances", InstanceIds=ids)
    except CloudError as error:
        if len(ids) == 1:
            raise
        told = [again for id in ids for again in attempted(terminate, aws, [id])]
        if told:
            raise CloudError("; ".join(told)) from error


def await_end(aws: Aws, ids: list[str]) -> None:
    """Waits until instances have ended."""
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


def remains(found: Survey) -> str:
    """What is still there, what still costs first, and what AWS refused to do or to say."""
    costly = [thing for thing in found.things if thing.kind in COSTS]
    others = [thing for thing in found.things if thing.kind not in COSTS]
    parts = [(costly, "still there, and costing"), (others, "still there")]
    told = [f"{words}: {', '.join(map(named, some))}" for some, words in parts if some]
    return "; ".join([*told, *(f"AWS: {error}" for error in found.errors)])


def named(thing: Thing) -> str:
    """A thing in a list."""
    return f"{thing.kind} {thing.id} {thing.state}".rstrip()


def refusals(aws: Aws, things: list[Thing]) -> dict[str, str]:
    """What EC2's DryRun says to ending the instances; empty words: it would do it."""
    ids = [thing.id for thing in things if thing.kind == "instance"]
    if not ids:
        return {}
    refusal = aws.refusal("ec2.terminate_instances", InstanceIds=ids)
    return {"ec2.terminate_instances": str(refusal or "")}
