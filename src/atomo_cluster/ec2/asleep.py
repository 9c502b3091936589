"""Hosts that EC2 stops and starts again: disks stay, memory and public addresses do not."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from atomo_cluster.ec2.aws import Aws
from atomo_cluster.ec2.inventory import Instance, instances
from atomo_cluster.ec2.remote import Answer, Host, Ssh, everywhere
from atomo_cluster.ec2.tags import HOURS, Owned
from atomo_cluster.ec2.user_data import LIBRARY, write
from atomo_cluster.errors import CloudError, LeftBehind, RemoteError

__all__ = ["DOWN", "STOP_S", "UP", "go_on", "pause", "start", "stop", "told_to_aws"]

UP: Final = ("pending", "running")
DOWN: Final = ("stopping", "stopped")
STOP_S: Final = 600
SCRIPTS: Final = Path(__file__).parent / "host"
SCRIPT_S: Final = 60.0


def script() -> bytes:
    """Pauses a fuse or lets it go on; hosts of older launches get the fuse that knows of it."""
    fuse = write(f"{LIBRARY}/fuse.sh", (SCRIPTS / "fuse.sh").read_text())
    return f"{fuse}\n{(SCRIPTS / 'pause.sh').read_text()}".encode()


@dataclass(frozen=True)
class Paused:
    """What the fuse of a host has left."""

    host: str
    left_h: float


def pause(ssh: Ssh, hosts: Sequence[Host]) -> list[Paused]:
    """Has the fuses of all hosts wait for their next start, or of none.

    Raises:
        RemoteError: one cannot be reached, or has hardly anything left.
    """
    answers = everywhere(hosts, lambda host: asked(ssh, host, "pause"))
    if bad := [answer for answer in answers if answer.code]:
        go_on(ssh, [answer.host for answer in answers if not answer.code])
        told = "; ".join(f"{one.host.alias} ({one.host.id}): {one.complaint()}" for one in bad)
        raise RemoteError(f"no host was stopped, since fuses would burn meanwhile: {told}")
    return [Paused(answer.host.id, float(answer.out.split()[-1]) / 3600) for answer in answers]


def go_on(ssh: Ssh, hosts: Sequence[Host]) -> list[Host]:
    """Lets the fuses of hosts that run on burn as before; those that could not be told."""
    answers = everywhere(hosts, lambda host: asked(ssh, host, "go_on"))
    return [answer.host for answer in answers if answer.code]


def asked(ssh: Ssh, host: Host, verb: str) -> Answer:
    """What a host says to a verb of pause.sh."""
    return ssh.run(host, f"sudo -n bash -s -- {verb}", script(), SCRIPT_S)


def stop(aws: Aws, owned: Owned, ids: Sequence[str]) -> None:
    """Has hosts stop, and waits until they have.

    Raises:
        CloudError: AWS refused, and all of them run on.
        LeftBehind: some stop, some do not, or AWS does not say.
    """
    move(aws, owned, ids, "stop", UP, "instance_stopped")


def start(aws: Aws, owned: Owned, ids: Sequence[str]) -> None:
    """Starts hosts that are stopped, and waits until they run.

    Raises:
        CloudError: AWS refused, and all of them are stopped as before.
        LeftBehind: some run, some do not, or AWS does not say.
    """
    move(aws, owned, ids, "start", DOWN, "instance_running")


def move(
    aws: Aws, owned: Owned, ids: Sequence[str], verb: str, before: Sequence[str], waiter: str
) -> None:
    """One of the two. An answer that got lost is no refusal: hosts are looked at."""
    try:
        aws.call(f"ec2.{verb}_instances", InstanceIds=list(ids))
    except CloudError as error:
        found = looked_at(aws, owned, ids, error)
        if all(one.state in before for one in found):
            raise
        if any(one.state in before for one in found):
            raise LeftBehind(f"{error}; {states(found)}: `status` tells, `{verb}_hosts` again goes "
                             "on") from error  # fmt: skip
    try:
        aws.wait(waiter, STOP_S, InstanceIds=list(ids))
    except CloudError as error:
        found = looked_at(aws, owned, ids, error)
        raise LeftBehind(f"{error}; {states(found)}: `status` tells how it goes on") from error


def looked_at(aws: Aws, owned: Owned, ids: Sequence[str], cause: CloudError) -> list[Instance]:
    """The hosts as they are now, after a call that failed."""
    try:
        return [one for one in instances(aws, owned) if one.id in ids]
    except CloudError as error:
        raise LeftBehind(
            f"{cause}; and AWS does not say which of these run, and cost: {', '.join(ids)} "
            f"({error}); `status` tells later"
        ) from cause


def states(found: Sequence[Instance]) -> str:
    """Which host is in which state."""
    return ", ".join(f"{one.id} is {one.state}" for one in found)


def told_to_aws(aws: Aws, paused: Sequence[Paused]) -> None:
    """Tells AWS what the fuses have left: EC2 counts the launch of a host from its last start."""
    for one in paused:
        tag = {"Key": HOURS, "Value": f"{one.left_h:.4f}"}
        aws.call("ec2.create_tags", Resources=[one.host], Tags=[tag])
