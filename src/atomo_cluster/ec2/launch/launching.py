"""Launching: all missing hosts or none; workers of a supervisor also in part."""

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from atomo_cluster.ec2.aws.client import Aws
from atomo_cluster.ec2.aws.deletion import delete_until_gone, remains, terminate_without_waiting
from atomo_cluster.ec2.aws.inventory import Instance, instances
from atomo_cluster.ec2.aws.profiles import find_hosts_profile
from atomo_cluster.ec2.aws.search import list_resources
from atomo_cluster.ec2.aws.tags import LAUNCH
from atomo_cluster.ec2.launch.attempts import Attempt
from atomo_cluster.ec2.launch.capacity import first_available
from atomo_cluster.ec2.launch.fleet import Order, order_on_demand, order_spot, refusals
from atomo_cluster.ec2.launch.plan import Plan
from atomo_cluster.ec2.places.network import Network, prepare_network
from atomo_cluster.errors import CloudError, LeftBehind, NotReady

__all__ = ["dry_run", "launch"]

START_S: Final = 600
SETTLE_S: Final = 5.0
Say = Callable[[str], None]


def launch(aws: Aws, plan: Plan, cidr: str | None, say: Say) -> list[Instance]:
    """Launches the hosts of a plan and returns the whole cluster.

    `cidr` is the range that may use ssh; None: security group and key pair exist and stay as is.

    After any failure, Ctrl-C included, everything that this call has made is deleted again, and
    nothing else.

    Raises:
        CloudError: AWS failed, and all is as before.
        NotReady: another launch has brought hosts since the plan was made.
        LeftBehind: AWS failed, and a resource could not be deleted; the message names it.
    """
    mark = uuid.uuid4().hex[:12]
    check_unchanged(aws, plan)
    try:
        made = start_somewhere(aws, plan, cidr, mark, say)
        if made:
            aws.wait("instance_running", START_S, InstanceIds=made)
        hosts = instances(aws, plan.owned)
        check_alone(plan, hosts, mark)
    except BaseException as error:
        roles = cidr is not None and plan.cluster.makes_roles  # the master makes none
        roll_back(aws, plan, mark, say, error, roles)
        raise
    return hosts


def start_somewhere(aws: Aws, plan: Plan, cidr: str | None, mark: str, say: Say) -> list[str]:
    """Makes one attempt after another until AWS has the capacity; returns the new instances.

    Raises:
        CloudError: no attempt has capacity, or AWS refused for another reason.
    """

    def clean_up(error: CloudError, attempt: Attempt, following: Attempt) -> None:
        say(f"AWS has no {attempt.where} ({error.code}); next: {following.where}")
        filters = plan.owned.filters(**{f"tag:{LAUNCH}": mark})
        for refusal in terminate_without_waiting(aws, filters):
            say(f"a launch template stays, and costs nothing; `shutdown` deletes it: {refusal}")

    def attempt_start(attempt: Attempt) -> list[str]:
        return start(aws, plan, attempt, cidr, mark, say)

    return first_available(plan.attempts, attempt_start, clean_up)[1]


def start(
    aws: Aws, plan: Plan, attempt: Attempt, cidr: str | None, mark: str, say: Say
) -> list[str]:
    """Orders every missing host; if none is missing, only updates the ssh rule."""
    network = (
        replace(existing_network(aws, plan), subnet=attempt.subnet)
        if cidr is None
        else prepare_network(aws, plan.cluster, plan.owned, mark, attempt.subnet, cidr, say)
    )
    made: list[str] = []
    for order in orders(plan, attempt, mark):
        say(f"launching {order.count} {order.role}{'s' if order.count > 1 else ''} "
            f"({' or '.join(order.types)}) ...")  # fmt: skip
        order_one = order_spot if order.spot else order_on_demand
        made += order_one(aws, order, plan.cluster, network, say)
    return made


def orders(plan: Plan, attempt: Attempt, mark: str) -> list[Order]:
    """Lists the orders, workers first: they are scarcer, and a master alone would cost in vain."""
    return [
        Order(
            owned=plan.owned,
            launch=mark,
            role=group.role,
            count=group.count,
            types=group.types,
            image=group.image,
            spot=group.spot,
            least=1 if plan.partial else group.count,
            admitted=plan.admitted,
        )
        for group in reversed(attempt.groups)
    ]


def check_unchanged(aws: Aws, plan: Plan) -> None:
    """Refuses to order where another launch has brought hosts since the plan was made.

    The lock of a launch holds on one machine; the tags of hosts tell of launches on others.

    Raises:
        NotReady: there are such hosts, and nothing was ordered.
    """
    known = {host.id for host in plan.running}
    others = [host for host in instances(aws, plan.owned) if host.id not in known]
    if others:
        raise NotReady(
            f"another `launch` of {plan.cluster.name} is under way, and nothing was launched here: "
            f"{launches_text(others)}. They run and cost; once it is done, `launch` again starts "
            "what is still missing"
        )


def check_alone(plan: Plan, hosts: list[Instance], mark: str) -> None:
    """Detects two launches in the same seconds, which would double the cluster.

    Both see the other's hosts, and both end their own.
    """
    if len(hosts) > plan.cluster.hosts:
        known = {host.id for host in plan.running}
        others = [host for host in hosts if host.id not in known and host.launch != mark]
        raise CloudError(
            f"the cluster has {len(hosts)} hosts where {plan.cluster.hosts} are wanted: another "
            f"`launch` ran at the same time ({launches_text(others)}), and may end its hosts too; "
            "see `status`, and run it again once the other is done"
        )


def launches_text(hosts: Sequence[Instance]) -> str:
    """Formats hosts with the machines that have launched them."""
    machines = sorted({host.machine for host in hosts if host.machine}) or ["an unknown machine"]
    return f"{', '.join(host.id for host in hosts)}, launched from {', '.join(machines)}"


def roll_back(
    aws: Aws, plan: Plan, mark: str, say: Say, cause: BaseException, makes_roles: bool
) -> None:
    """Deletes every resource with the mark of this launch, including unacknowledged ones."""
    filters = plan.owned.filters(**{f"tag:{LAUNCH}": mark})
    say(f"the launch failed ({type(cause).__name__}); deleting what it made ...")
    try:
        delete_until_gone(aws, filters, say, makes_roles=makes_roles)
        time.sleep(SETTLE_S)  # an order that was cut off may still come to something
        remaining = delete_until_gone(aws, filters, say, makes_roles=makes_roles)
    except BaseException as error:
        raise LeftBehind(
            f"{cause}; and the roll-back failed: {error!r}. Run `shutdown` until it says that "
            "nothing is left"
        ) from error
    if remaining.things or remaining.errors:
        raise LeftBehind(f"{cause}; {remains(remaining)}. Run `shutdown`") from cause
    say("nothing of it is left")


def existing_network(aws: Aws, plan: Plan) -> Network:
    """Returns the existing network; missing parts are empty."""
    resources = list_resources(aws, plan.owned.filters())
    id_of_kind = {resource.kind: resource.id for resource in resources}
    return Network(
        subnet=plan.subnet,
        security_group=id_of_kind.get("security-group", ""),
        placement_group=id_of_kind.get("placement-group"),
        key_name=plan.cluster.key_name or id_of_kind.get("key-pair", ""),
        hosts_profile=find_hosts_profile(aws, plan.owned) if plan.cluster.managed else "",
    )


def dry_run(aws: Aws, plan: Plan) -> dict[str, str]:
    """Maps each call of the launch to the error that EC2's DryRun predicts; empty for none."""
    network = existing_network(aws, plan)
    verdicts: dict[str, str] = {}
    if not network.security_group:
        refusal = aws.refusal(
            "ec2.create_security_group",
            GroupName=plan.owned.label,
            Description="dry run",
            VpcId=plan.subnet.vpc,
            TagSpecifications=[plan.owned.specification("security-group", {})],
        )
        verdicts["ec2.create_security_group"] = str(refusal or "")
    for order in orders(plan, plan.attempts[0], "dry-run"):
        predicted = refusals(aws, order, plan.cluster, network)
        verdicts |= {f"{action} ({order.role})": words for action, words in predicted.items()}
    return verdicts
