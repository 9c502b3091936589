"""Missing permissions of an identity, from IAM's simulator or from EC2's DryRun."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from atomo_cluster.ec2.aws.client import Aws
from atomo_cluster.ec2.aws.policy import (
    FETCHING,
    NOT_NEEDED,
    ONCE_BAKED,
    ONCE_SUPERVISED,
    SESSIONS,
    policy,
)
from atomo_cluster.errors import CloudError

__all__ = ["ALLOWED", "LACKS", "UNKNOWN", "Permission", "permissions", "principal"]

ALLOWED: Final = "allowed"
LACKS: Final = "lacks"
UNKNOWN: Final = "unknown"
OPTIONAL: Final = (NOT_NEEDED, FETCHING, ONCE_SUPERVISED, SESSIONS, *ONCE_BAKED)
DENIED: Final = frozenset({"UnauthorizedOperation", "AccessDenied", "AccessDeniedException"})


@dataclass(frozen=True)
class Permission:
    """The permission of an identity for one action of the policy."""

    action: str  # IAM's name, e.g. ec2:RunInstances
    statement: str  # of the policy
    verdict: str
    why: str = ""

    @property
    def needed(self) -> bool:
        """True if commands other than those of `supervise` and `bake` fail without it."""
        return self.statement not in OPTIONAL


def permissions(aws: Aws, arn: str, cluster: str) -> list[Permission]:
    """Checks each action of the policy. Without access to the simulator, DryRun checks some.

    Args:
        aws: the region.
        arn: the identity, as STS names it.
        cluster: the name of the cluster, for conditions on tags.
    """
    found: list[Permission] = []
    try:
        source = principal(aws, arn)
        for statement in policy()["Statement"]:
            found += simulate(aws, source, statement, cluster)
    except CloudError as error:
        return [dry_run_permission(aws, *one, str(error)) for one in actions()]
    return found


def actions() -> Iterator[tuple[str, str]]:
    """Yields each action of the policy with its statement."""
    for statement in policy()["Statement"]:
        for action in statement["Action"]:
            yield action, statement["Sid"]


def principal(aws: Aws, arn: str) -> str:
    """Returns the user or role whose policies apply; a session has those of its role.

    The name of a session omits the path of the role, so IAM is asked for it.
    """
    head, _, name = arn.partition(":assumed-role/")
    if not name:
        return arn
    role = name.split("/")[0]
    try:
        return str(aws.call("iam.get_role", RoleName=role)["Role"]["Arn"])
    except CloudError:
        return f"{head.replace(':sts:', ':iam:')}:role/{role}"


def simulate(aws: Aws, source: str, statement: Mapping[str, Any], cluster: str) -> list[Permission]:
    """Simulates a statement's actions, which must be allowed in every context."""
    refused: dict[str, str] = {}
    for context in contexts(statement.get("Condition", {}), cluster):
        told = aws.pages(
            "iam.simulate_principal_policy", "EvaluationResults",
            PolicySourceArn=source, ActionNames=statement["Action"], ContextEntries=context,
        )  # fmt: skip
        for one in told:
            if one["EvalDecision"] != ALLOWED:
                refused[one["EvalActionName"]] = one["EvalDecision"]
    return [
        Permission(action, statement["Sid"], LACKS if action in refused else ALLOWED,
                   refused.get(action, ""))
        for action in statement["Action"]
    ]  # fmt: skip


def contexts(condition: Mapping[str, Any], cluster: str) -> list[list[dict[str, Any]]]:
    """Returns the contexts of a statement's condition, in the format of the simulator."""
    pairs = [(key, value) for named in condition.values() for key, value in named.items()]
    if not pairs:
        return [[]]
    ((key, values),) = pairs
    listed: Sequence[str] = [cluster] if isinstance(values, str) else values  # "false": it has one
    return [
        [{"ContextKeyName": key, "ContextKeyValues": [value], "ContextKeyType": "string"}]
        for value in listed
    ]


def dry_run_permission(aws: Aws, action: str, statement: str, why: str) -> Permission:
    """Checks a read-only action of EC2 by DryRun."""
    service, _, name = action.partition(":")
    if service != "ec2" or not name.startswith("Describe"):
        return Permission(action, statement, UNKNOWN, why)
    words = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
    refusal = aws.refusal(f"ec2.{words.removeprefix('_')}")
    if refusal is None:
        return Permission(action, statement, ALLOWED)
    return Permission(action, statement, LACKS if refusal.code in DENIED else UNKNOWN, str(refusal))
