"""The budget: the bound on the cluster's cost beside `max_usd`."""

from collections.abc import Sequence
from typing import Final

from atomo_cluster.ec2.money.prices import format_usd, sum_known
from atomo_cluster.errors import CloudError, NotReady

__all__ = ["check_budget", "check_replacement", "limit_excess"]

REMEDY: Final = "take fewer hosts or hours, a spot_price, or another max_usd"


def limit_excess(limit: float | None, bound: float | None) -> str:
    """Returns why a cost exceeds the limit or is unknown; empty if it is within the limit."""
    if limit is None or (bound is not None and bound <= limit):
        return ""
    if bound is None:
        return (f"max_usd is {format_usd(limit)}, and AWS does not say what the cluster may cost "
                "(`iam --check` shows whether pricing:GetProducts is allowed)")  # fmt: skip
    cost = f"the cluster may cost {format_usd(bound)} until its fuses"
    return f"{cost}, and max_usd is {format_usd(limit)}"


def check_budget(limit: float | None, bounds: Sequence[float | None], remedy: str = REMEDY) -> None:
    """Raises NotReady if the cluster may cost more than `max_usd`, or its cost is unknown.

    Args:
        limit: `max_usd`; None: no limit.
        bounds: USD of the parts of the cluster until their fuses, and of hosts that have ended;
            None: unknown.
        remedy: the advice at the end of the message.
    """
    if excess := limit_excess(limit, sum_known(list(bounds))):
        raise NotReady(f"{excess}; {remedy}")


def check_replacement(limit: float, bounds: Sequence[float | None]) -> None:
    """Checks the budget before the supervisor launches new hosts.

    An unknown price is an error of AWS here: the supervisor retries, as after any such error.

    Raises:
        CloudError: a cost is unknown.
        NotReady: the cluster with its new hosts may cost more than the limit.
    """
    bound = sum_known(list(bounds))
    if bound is None:
        raise CloudError("AWS does not say what new hosts would cost")
    if bound > limit:
        cost = f"with new hosts the cluster may cost {format_usd(bound)} until the fuse"
        raise NotReady(f"{cost}, and max_usd is {format_usd(limit)}")
