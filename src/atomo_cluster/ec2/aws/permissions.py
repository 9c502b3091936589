"""Missing permissions of an identity, from IAM's simulator or from EC2's DryRun."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from atomo_cluster.ec2.aws.client import Aws
from atomo_cluster.ec2.aws.policy import AWS_ENDS, OPTIONAL
from atomo_cluster.ec2.aws.policy_scope import Statement
from atomo_cluster.errors import CloudError

__all__ = ["ALLOWED", "LACKS", "UNKNOWN", "Permission", "permissions", "principal"]

ALLOWED: Final = "allowed"
LACKS: Final = "lacks"
UNKNOWN: Final = "unknown"
PRICES: Final = "Prices"  # without them `launch` does not know whether it keeps to max_usd
DENIED: Final = frozenset({"UnauthorizedOperation", "AccessDenied", "AccessDeniedException"})
# Types of context keys that are not strings, in the words of the simulator.
TYPES: Final[Mapping[str, str]] = {
    "Bool": "boolean",
    "BoolIfExists": "boolean",
    "NumericLessThanEquals": "numeric",
    "ForAllValues:StringEquals": "stringList",
}
NULL: Final = "Null"  # it asks for another key of the same statement to be there
SAMPLE: Final = "sample"  # stands for a name that a wildcard allows


@dataclass(frozen=True)
class Permission:
    """The permission of an identity for one action of a statement of the policy."""

    action: str  # IAM's name, e.g. ec2:RunInstances
    statement: str  # of the policy
    verdict: str
    needed: bool  # commands fail without it
    why: str = ""


def permissions(
    aws: Aws,
    arn: str,
    policy: Mapping[str, Any],
    max_usd: float | None = None,
    ends_needed: bool = False,
) -> list[Permission]:
    """Checks each action of a policy. Without access to the simulator, DryRun checks some.

    Args:
        aws: the region.
        arn: the identity, as STS names it.
        policy: the least policy of the user.
        max_usd: the limit of the settings, for which prices must be known.
        ends_needed: True if a launch fails where it cannot schedule ends by AWS.
    """
    optional = {name for name in OPTIONAL if max_usd is None or name != PRICES}
    optional |= set() if ends_needed else set(AWS_ENDS)
    statements: list[Statement] = policy["Statement"]
    try:
        source = principal(aws, arn)
        return [
            Permission(
                action,
                statement["Sid"],
                LACKS if why else ALLOWED,
                statement["Sid"] not in optional,
                why,
            )
            for statement in statements
            for action, why in simulate(aws, source, statement).items()
        ]
    except CloudError as error:
        return [
            dry_run_permission(
                aws, action, statement["Sid"], statement["Sid"] not in optional, str(error)
            )
            for statement in statements
            for action in statement["Action"]
        ]


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


def simulate(aws: Aws, source: str, statement: Statement) -> dict[str, str]:
    """Maps the actions of a statement to the reason for a denial; empty if they are allowed.

    An action is allowed if it is so in each context, on some resource of the statement: some
    actions have fewer kinds of resources than their statement.
    """
    reasons = dict.fromkeys(statement["Action"], "")
    resources = sorted(samples(statement["Resource"], aws.region))
    for context in contexts(statement.get("Condition", {}), aws.region):
        results = aws.pages(
            "iam.simulate_principal_policy", "EvaluationResults", PolicySourceArn=source,
            ActionNames=statement["Action"], ResourceArns=resources, ContextEntries=context,
        )  # fmt: skip
        decisions: dict[str, set[str]] = {}
        for result in results:
            decisions.setdefault(result["EvalActionName"], set()).add(result["EvalDecision"])
        for action, seen in decisions.items():
            if refused := seen - {ALLOWED}:
                reasons[action] = min(refused)
    return reasons


def samples(resources: str | Sequence[str], region: str) -> Iterator[str]:
    """Yields a resource that each pattern allows; `*` stays, as for actions without resources.

    >>> list(samples("arn:aws:ec2:*:1:instance/*", "us-east-1"))
    ['arn:aws:ec2:us-east-1:1:instance/sample']
    """
    for pattern in [resources] if isinstance(resources, str) else resources:
        head, mark, tail = pattern.partition(":*:")
        full = f"{head}:{region}:{tail}" if mark else pattern
        yield full if full == "*" else full.replace("*", SAMPLE)


def contexts(condition: Mapping[str, Any], region: str) -> list[list[dict[str, Any]]]:
    """Returns the contexts of a statement's conditions, in the format of the simulator.

    Where a key may have several values, each value has a context; there is one such key at most
    besides the region, which is that of the caller.
    """
    entries = [
        (operator, key, [region] if key == "aws:RequestedRegion" else as_list(values))
        for operator, keys in condition.items() if operator != NULL
        for key, values in keys.items()
    ]  # fmt: skip
    longest = max((len(values) for _, _, values in entries), default=1)
    return [
        [
            {
                "ContextKeyName": key,
                "ContextKeyValues": [values[min(number, len(values) - 1)].replace("*", SAMPLE)],
                "ContextKeyType": TYPES.get(operator, "string"),
            }
            for operator, key, values in entries
        ]
        for number in range(longest)
    ]


def as_list(values: str | Sequence[str]) -> list[str]:
    """Returns the values of a condition as a list."""
    return [values] if isinstance(values, str) else list(chain(values))


def dry_run_permission(aws: Aws, action: str, statement: str, needed: bool, why: str) -> Permission:
    """Checks a read-only action of EC2 by DryRun."""
    service, _, name = action.partition(":")
    if service != "ec2" or not name.startswith("Describe"):
        return Permission(action, statement, UNKNOWN, needed, why)
    words = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
    refusal = aws.refusal(f"ec2.{words.removeprefix('_')}")
    if refusal is None:
        return Permission(action, statement, ALLOWED, needed)
    verdict = LACKS if refusal.code in DENIED else UNKNOWN
    return Permission(action, statement, verdict, needed, str(refusal))
