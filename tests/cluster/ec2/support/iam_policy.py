"""An evaluator of IAM policies: may a request be made, by the policies of an identity?

It follows IAM's rules: an explicit Deny wins; else a statement must allow the request, and so must
a permissions boundary. What it does not know raises ValueError, so that no policy passes because
part of it was not read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

ALLOWED, IMPLICIT, EXPLICIT = "allowed", "implicitDeny", "explicitDeny"
ELEMENTS = {"Sid", "Effect", "Action", "NotAction", "Resource", "NotResource", "Condition"}
Policy = Mapping[str, Any]


@dataclass(frozen=True)
class Request:
    """One action on one resource, with the values of the condition keys that IAM knows of it."""

    action: str
    resource: str = "*"
    context: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def values(self, key: str) -> Sequence[str] | None:
        """Returns the values of a condition key; None: the request does not have it."""
        return next((v for name, v in self.context.items() if name.lower() == key.lower()), None)


def decision(policies: Sequence[Policy], request: Request, boundary: Policy | None = None) -> str:
    """Returns the decision on a request, in the words of IAM's simulator."""
    effects = [one["Effect"] for policy in policies for one in statements(policy)
               if applies(one, request)]  # fmt: skip
    if "Deny" in effects:
        return EXPLICIT
    if "Allow" not in effects:
        return IMPLICIT
    return ALLOWED if boundary is None else decision([boundary], request)


def statements(policy: Policy) -> list[Mapping[str, Any]]:
    """Returns the statements of a policy, whose elements are all known."""
    if policy["Version"] != "2012-10-17":
        raise ValueError(f"version {policy['Version']!r}: variables would be plain text")
    listed = listed_of(policy["Statement"])
    for one in listed:
        if unknown := set(one) - ELEMENTS:
            raise ValueError(f"unknown elements {unknown}")
        if one["Effect"] not in ("Allow", "Deny"):
            raise ValueError(f"effect {one['Effect']!r}")
    return listed


def listed_of(value: Any) -> list[Any]:
    """Returns a value that may stand without its list as a list."""
    return list(value) if isinstance(value, (list, tuple)) else [value]


def applies(statement: Mapping[str, Any], request: Request) -> bool:
    """True if a statement is about a request, and all of its conditions hold."""
    return (
        matches(statement, "Action", request.action.lower(), str.lower)
        and matches(statement, "Resource", request.resource, lambda p: filled(p, request) or "")
        and all(
            holds(operator, key, listed_of(values), request)
            for operator, keys in statement.get("Condition", {}).items()
            for key, values in keys.items()
        )
    )


def matches(
    statement: Mapping[str, Any], element: str, name: str, read: Callable[[str], str]
) -> bool:
    """True if the element of a statement has a pattern for a name, or its Not-element has none."""
    if element in statement:
        return any(like(name, read(one)) for one in listed_of(statement[element]))
    return not any(like(name, read(one)) for one in listed_of(statement[f"Not{element}"]))


def like(value: str, pattern: str) -> bool:
    """True if a value matches a pattern with * and ?; brackets have no meaning in IAM."""
    return fnmatchcase(value, pattern.replace("[", "[[]"))


def filled(text: str, request: Request) -> str | None:
    """Replaces the variables of a text by the request's values; None: it lacks one of them."""
    for name in re.findall(r"\$\{([^}]*)\}", text):
        values = request.values(name)
        if values is None or len(values) != 1:
            return None
        text = text.replace(f"${{{name}}}", values[0])
    return text


def arn_like(value: str, pattern: str) -> bool:
    """True if each of the six parts of an ARN matches the same part of a pattern."""
    parts, wanted = value.split(":", 5), pattern.split(":", 5)
    return len(parts) == len(wanted) and all(map(like, parts, wanted))


def equal_bool(value: str, wanted: str) -> bool:
    return value.lower() == wanted.lower()


OPERATORS: dict[str, Callable[[str, str], bool]] = {
    "StringEquals": lambda value, wanted: value == wanted,
    "StringEqualsIgnoreCase": lambda value, wanted: value.lower() == wanted.lower(),
    "StringLike": like,
    "ArnLike": arn_like,
    "ArnEquals": arn_like,  # as IAM has it: both take wildcards
    "Bool": equal_bool,
    "NumericEquals": lambda value, wanted: float(value) == float(wanted),
    "NumericLessThan": lambda value, wanted: float(value) < float(wanted),
    "NumericLessThanEquals": lambda value, wanted: float(value) <= float(wanted),
    "NumericGreaterThan": lambda value, wanted: float(value) > float(wanted),
    "NumericGreaterThanEquals": lambda value, wanted: float(value) >= float(wanted),
}
NEGATED = {
    "StringNotEquals": "StringEquals",
    "StringNotLike": "StringLike",
    "ArnNotLike": "ArnLike",
    "ArnNotEquals": "ArnEquals",
    "NumericNotEquals": "NumericEquals",
}


def holds(operator: str, key: str, wanted: list[str], request: Request) -> bool:
    """True if a condition holds."""
    values = request.values(key)
    if operator == "Null":
        return (values is None) == (wanted == ["true"])
    prefix, _, plain = operator.rpartition(":")
    optional = plain.endswith("IfExists")
    plain = plain.removesuffix("IfExists")
    if plain not in OPERATORS and plain not in NEGATED:
        raise ValueError(f"unknown operator {operator!r}")
    if values is None:
        return optional or plain in NEGATED or prefix == "ForAllValues"
    texts = [text for one in wanted if (text := filled(one, request)) is not None]
    results = [satisfied(plain, value, texts) for value in values]
    if prefix == "ForAllValues":
        return all(results)
    if prefix == "ForAnyValue":
        return any(results)
    if prefix or len(values) != 1:
        raise ValueError(f"{operator} of {key}, which has {len(values)} values")
    return results[0]


def satisfied(operator: str, value: str, wanted: list[str]) -> bool:
    """True if a value meets one of the wanted values, or with a negated operator none of them."""
    if operator in NEGATED:
        return not satisfied(NEGATED[operator], value, wanted)
    return any(OPERATORS[operator](value, one) for one in wanted)
