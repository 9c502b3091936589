"""Ends of hosts by AWS, as commands schedule, check and delete them."""

from collections.abc import Sequence

from atomo_cluster.ec2.aws.instance_states import RUNNING_STATES
from atomo_cluster.ec2.aws.inventory import Instance
from atomo_cluster.ec2.aws.profiles import is_denied
from atomo_cluster.ec2.invocation.run import Run
from atomo_cluster.ec2.places.aws_ends import EndFailure, hosts_without_ends, remove_ends, set_ends
from atomo_cluster.ec2.settings.terms import YES
from atomo_cluster.errors import CloudError, LeftBehind

__all__ = ["check_ends", "endless_hosts", "forget_ends", "schedule_ends", "without_text"]


def without_text(reason: str) -> str:
    """Returns the warning about hosts that AWS does not end, with the remedies."""
    return (
        f"WITHOUT AN END BY AWS: hosts that hang outlive their fuses: {reason}. `iam --for launch` "
        "prints the rights and `iam --end-role` the role that it needs, `launch` again schedules "
        "the ends, aws_end: no does without"
    )


def schedule_ends(run: Run, hosts: Sequence[Instance]) -> EndFailure | None:
    """Schedules the ends of hosts by AWS; a failure is reported, since the fuses hold."""
    failure = set_ends(run.aws, run.cluster, run.owned, hosts)
    if failure is not None:
        run.warn(without_text(failure.text))
    return failure


def check_ends(run: Run, hosts: Sequence[Instance], failure: EndFailure | None) -> None:
    """Raises LeftBehind if hosts run without the ends by AWS that the settings demand."""
    if failure is not None and run.cluster.aws_end == YES:
        ids = ", ".join(host.id for host in hosts)
        raise LeftBehind(
            f"aws_end: yes, and these run, and cost, without an end by AWS: {ids}: {failure.text}. "
            "`launch` again schedules it, aws_end: auto does without, `shutdown` ends them"
        )


def forget_ends(run: Run, ids: Sequence[str]) -> None:
    """Deletes the schedules of hosts that have ended; names them if AWS refuses."""
    try:
        remove_ends(run.aws, run.cluster, run.owned, ids)
    except CloudError as error:
        run.say(
            f"the schedules {', '.join(ids)} of group {run.owned.label} are perhaps left; they "
            f"cost nothing, and delete themselves 15 minutes after the fuses: {error}"
        )


def endless_hosts(run: Run, hosts: Sequence[Instance]) -> list[str] | None:
    """Reports the running hosts that AWS does not end, and returns their identifiers.

    None: that is unknown, or the settings do without.

    Raises:
        CloudError: AWS does not say, though the identity may ask.
    """
    alive = [host for host in hosts if host.state in RUNNING_STATES]
    if not run.cluster.aws_ends or not alive:
        return None
    try:
        endless = [host.id for host in hosts_without_ends(run.aws, run.owned, alive)]
    except CloudError as error:
        if not is_denied(error) or run.cluster.aws_end == YES:
            raise
        run.say(f"end by AWS: unknown, hosts that hang may outlive their fuses: {error}")
        return None
    if endless:
        run.say(
            f"WITHOUT AN END BY AWS: {', '.join(endless)}: if they hang they outlive their fuses; "
            "`launch` schedules the ends, or says why not"
        )
    return endless
