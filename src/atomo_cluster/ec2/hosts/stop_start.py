"""Stopping and starting hosts: EC2 keeps the disks, but not memory or public addresses."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from atomo_cluster.ec2.aws.client import Aws
from atomo_cluster.ec2.aws.inventory import Instance, instances
from atomo_cluster.ec2.aws.tags import HOURS, ClusterTags
from atomo_cluster.ec2.hosts.scripts import SCRIPTS
from atomo_cluster.ec2.hosts.ssh import Answer, Host, Ssh, on_all_hosts
from atomo_cluster.ec2.hosts.user_data import LIBRARY, write
from atomo_cluster.errors import CloudError, LeftBehind, RemoteError

__all__ = [
    "RUNNING_STATES",
    "STOPPED_STATES",
    "STOP_S",
    "pause_fuses",
    "resume_fuses",
    "start_instances",
    "stop_instances",
    "tag_remaining_hours",
]

RUNNING_STATES: Final = ("pending", "running")
STOPPED_STATES: Final = ("stopping", "stopped")
STOP_S: Final = 600
SCRIPT_S: Final = 60.0


def pause_script() -> bytes:
    """Builds the script that pauses or resumes a fuse; it also updates fuse.sh on the host."""
    fuse = write(f"{LIBRARY}/fuse.sh", (SCRIPTS / "fuse.sh").read_text())
    return f"{fuse}\n{(SCRIPTS / 'pause.sh').read_text()}".encode()


@dataclass(frozen=True)
class PausedFuse:
    """Remaining time of a host's paused fuse."""

    host: str
    left_h: float


def pause_fuses(ssh: Ssh, hosts: Sequence[Host]) -> list[PausedFuse]:
    """Pauses the fuses of all hosts until their next start, or of none.

    Raises:
        RemoteError: a host cannot be reached, or its fuse ends within minutes.
    """
    answers = on_all_hosts(hosts, lambda host: run_pause_script(ssh, host, "pause"))
    if bad := [answer for answer in answers if answer.code]:
        resume_fuses(ssh, [answer.host for answer in answers if not answer.code])
        told = "; ".join(f"{one.host.alias} ({one.host.id}): {one.complaint()}" for one in bad)
        raise RemoteError(f"no host was stopped, since fuses would burn meanwhile: {told}")
    return [PausedFuse(answer.host.id, float(answer.out.split()[-1]) / 3600) for answer in answers]


def resume_fuses(ssh: Ssh, hosts: Sequence[Host]) -> list[Host]:
    """Resumes the fuses of hosts that keep running; returns the hosts that did not respond."""
    answers = on_all_hosts(hosts, lambda host: run_pause_script(ssh, host, "go_on"))
    return [answer.host for answer in answers if answer.code]


def run_pause_script(ssh: Ssh, host: Host, verb: str) -> Answer:
    """Runs pause.sh with a verb on a host."""
    return ssh.run(host, f"sudo -n bash -s -- {verb}", pause_script(), SCRIPT_S)


def stop_instances(aws: Aws, owned: ClusterTags, ids: Sequence[str]) -> None:
    """Stops instances and waits until they are stopped.

    Raises:
        CloudError: AWS refused, and all of them still run.
        LeftBehind: some stop and others do not, or their states are unknown.
    """
    change_states(aws, owned, ids, "stop", RUNNING_STATES, "instance_stopped")


def start_instances(aws: Aws, owned: ClusterTags, ids: Sequence[str]) -> None:
    """Starts stopped instances and waits until they run.

    Raises:
        CloudError: AWS refused, and all of them are still stopped.
        LeftBehind: some run and others do not, or their states are unknown.
    """
    change_states(aws, owned, ids, "start", STOPPED_STATES, "instance_running")


def change_states(
    aws: Aws, owned: ClusterTags, ids: Sequence[str], verb: str, before: Sequence[str], waiter: str
) -> None:
    """Stops or starts instances.

    A lost response is not a refusal: after an error the states of the instances decide.
    """
    try:
        aws.call(f"ec2.{verb}_instances", InstanceIds=list(ids))
    except CloudError as error:
        found = states_after_error(aws, owned, ids, error)
        if all(one.state in before for one in found):
            raise
        if any(one.state in before for one in found):
            raise LeftBehind(f"{error}; {states(found)}: `status` tells, `{verb}_hosts` again goes "
                             "on") from error  # fmt: skip
    try:
        aws.wait(waiter, STOP_S, InstanceIds=list(ids))
    except CloudError as error:
        found = states_after_error(aws, owned, ids, error)
        raise LeftBehind(f"{error}; {states(found)}: `status` tells how it goes on") from error


def states_after_error(
    aws: Aws, owned: ClusterTags, ids: Sequence[str], cause: CloudError
) -> list[Instance]:
    """Returns the instances in their present states, after a failed call."""
    try:
        return [one for one in instances(aws, owned) if one.id in ids]
    except CloudError as error:
        raise LeftBehind(
            f"{cause}; and AWS does not say which of these run, and cost: {', '.join(ids)} "
            f"({error}); `status` tells later"
        ) from cause


def states(found: Sequence[Instance]) -> str:
    """Formats the state of each instance."""
    return ", ".join(f"{one.id} is {one.state}" for one in found)


def tag_remaining_hours(aws: Aws, paused: Sequence[PausedFuse]) -> None:
    """Tags hosts with their remaining hours: EC2 counts the launch time from the last start."""
    for one in paused:
        tag = {"Key": HOURS, "Value": f"{one.left_h:.4f}"}
        aws.call("ec2.create_tags", Resources=[one.host], Tags=[tag])
