"""What of the policy an identity lacks, as IAM simulates it, or as far as EC2's DryRun says."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from atomo_cluster.ec2.aws import Aws
from atomo_cluster.ec2.policy import (
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
    """Whether an identity may do something of the policy."""

    action: str  # IAM's name, e.g. ec2:RunInstances
    statement: str  # of the policy
    verdict: str
    why: str = ""

    @property
    def needed(self) -> bool:
        """Whether commands fail without it, but for those of `supervise` and `bake` alone."""
        return self.statement not in OPTIONAL


def permissions(aws: Aws, arn: str, cluster: str) -> list[Permission]:
    """Each action of the policy. Where the simulator may not be asked, DryRun tells of some.

    Args:
        aws: the region.
        arn: who asks, as STS names them.
        cluster: the name that things would be tagged with.
    """
    found: list[Permission] = []
    try:
        source = principal(aws, arn)
        for statement in policy()["Statement"]:
            found += simulated(aws, source, statement, cluster)
    except CloudError as error:
        return [tried(aws, *one, str(error)) for one in actions()]
    return found


def actions() -> Iterator[tuple[str, str]]:
    """Each action of the policy with its statement."""
    for statement in policy()["Statement"]:
        for action in statement["Action"]:
            yield action, statement["Sid"]


def principal(aws: Aws, arn: str) -> str:
    """The user or role whose policies count: a session has those of its role.

    The session's name leaves out the path that a role may have, which IAM tells.
    """
    head, _, name = arn.partition(":assumed-role/")
    if not name:
        return arn
    role = name.split("/")[0]
    try:
        return str(aws.call("iam.get_role", RoleName=role)["Role"]["Arn"])
    except CloudError:
        return f"{head.replace(':sts:', ':iam:')}:role/{role}"


def simulated(
    aws: Aws, source: str, statement: Mapping[str, Any], cluster: str
) -> list[Permission]:
    """What the simulator says of a statement's actions, which must be allowed in every context."""
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
    """The circumstances in which a statement's actions are done, as the simulator takes them."""
    pairs = [(key, value) for named in condition.values() for key, value in named.items()]
    if not pairs:
        return [[]]
    ((key, values),) = pairs
    listed: Sequence[str] = [cluster] if isinstance(values, str) else values  # "false": it has one
    return [
        [{"ContextKeyName": key, "ContextKeyValues": [value], "ContextKeyType": "string"}]
        for value in listed
    ]


def tried(aws: Aws, action: str, statement: str, why: str) -> Permission:
    """What EC2's DryRun says, which it does of what only looks."""
    service, _, name = action.partition(":")
    if service != "ec2" or not name.startswith("Describe"):
        return Permission(action, statement, UNKNOWN, why)
    words = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
    refusal = aws.refusal(f"ec2.{words.removeprefix('_')}")
    if refusal is None:
        return Permission(action, statement, ALLOWED)
    return Permission(action, statement, LACKS if refusal.code in DENIED else UNKNOWN, str(refusal))
