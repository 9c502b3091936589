"""The size of a policy: statements that merge, and parts that fit into managed policies."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from atomo_cluster.ec2.aws.policy_scope import Statement

__all__ = ["MANAGED", "compact", "parts", "size"]

MANAGED: Final = 6144  # characters without spaces that a managed policy takes
Policy = Mapping[str, Any]


def size(policy: Policy) -> int:
    """Returns the characters of a policy that IAM counts."""
    return len(json.dumps(policy, separators=(",", ":")))


def compact(policy: Policy) -> dict[str, Any]:
    """Returns a policy that allows the same in fewer characters.

    Statements with the same resources and the same conditions become one, with all their actions;
    its name has theirs.
    """
    merged: dict[str, Statement] = {}
    for statement in policy["Statement"]:
        terms = {key: value for key, value in statement.items() if key not in ("Sid", "Action")}
        key = json.dumps(terms, sort_keys=True)
        merged[key] = joined(merged[key], statement) if key in merged else statement
    return {**policy, "Statement": list(merged.values())}


def joined(first: Statement, second: Statement) -> Statement:
    """Returns one statement with the actions of two."""
    actions = list(dict.fromkeys([*first["Action"], *second["Action"]]))
    return {**first, "Sid": first["Sid"] + second["Sid"], "Action": actions}


def parts(policy: Policy, longest: int = MANAGED) -> list[dict[str, Any]]:
    """Splits a policy into policies that fit, in the order of its statements."""
    batches: list[list[Statement]] = [[]]
    for statement in policy["Statement"]:
        if batches[-1] and size(with_statements(policy, [*batches[-1], statement])) > longest:
            batches.append([])
        batches[-1].append(statement)
    return [with_statements(policy, batch) for batch in batches]


def with_statements(policy: Policy, statements: Sequence[Statement]) -> dict[str, Any]:
    """Returns a policy with other statements."""
    return {**policy, "Statement": list(statements)}
