"""Capacity: the errors that mean that AWS has none, and the search for the first candidate."""

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from atomo_cluster.ec2.aws.client import CAPACITY
from atomo_cluster.errors import CloudError

__all__ = ["NO_CAPACITY", "QUOTAS", "SCARCE", "first_available", "lacks_capacity"]

Candidate = TypeVar("Candidate")
Result = TypeVar("Result")

NO_CAPACITY: Final = "UnfulfillableCapacity"
# After these errors another zone, type or region may have capacity.
SCARCE: Final = frozenset(
    {NO_CAPACITY, *CAPACITY, "InsufficientCapacity", "SpotMaxPriceTooLow", "Unsupported"}
)
# After these errors the account may have room for fewer hosts.
QUOTAS: Final = ("VcpuLimitExceeded", "InstanceLimitExceeded", "MaxSpotInstanceCountExceeded")


def lacks_capacity(error: CloudError) -> bool:
    """True if the error means that AWS lacks capacity, so that another candidate may succeed."""
    return error.code in SCARCE


def first_available(
    candidates: Sequence[Candidate],
    attempt: Callable[[Candidate], Result],
    on_refusal: Callable[[CloudError, Candidate, Candidate], None],
) -> tuple[Candidate, Result]:
    """Tries candidates in order until AWS has the capacity for one.

    Args:
        candidates: at least one zone, type or region, in the order of trial.
        attempt: orders the hosts from a candidate.
        on_refusal: runs between two attempts, with the error, its candidate and the next one.

    Returns:
        The first candidate with capacity, and the result of its attempt.

    Raises:
        CloudError: no candidate has capacity, or AWS refused for another reason.
    """
    for candidate, following in zip(candidates, (*candidates[1:], None), strict=True):
        try:
            return candidate, attempt(candidate)
        except CloudError as error:
            if following is None or not lacks_capacity(error):
                raise
            on_refusal(error, candidate, following)
    raise ValueError("there is no candidate to try")
