"""New resources: adoption after a lost answer, and waits until AWS knows them everywhere.

A call that makes a resource may fail although AWS has made it: the answer was lost, or boto3
repeated a call that had succeeded. The resource has the tags of the cluster, so the search for them
decides, not the error.
"""

import time
from collections.abc import Callable, Container
from contextlib import suppress
from typing import Final, TypeVar

from atomo_cluster.ec2.aws.client import is_ambiguous
from atomo_cluster.errors import CloudError

__all__ = ["make_or_adopt", "repeat", "settle"]

TRIES, BETWEEN_S = 4, 2.0  # a new resource may be listed some seconds later
SETTLE_TRIES, SETTLE_S = 12, 5.0
# Errors about a group or a key pair that was made seconds ago.
UNSETTLED: Final = ("InvalidGroup.NotFound", "InvalidGroupId.NotFound", "InvalidKeyPair.NotFound")
TAKEN: Final = ("Duplicate", "AlreadyExists")  # in the codes of names that exist
T = TypeVar("T")


def make_or_adopt(make: Callable[[], T], find: Callable[[], T | None]) -> T:
    """Makes a resource; after an error returns the one that carries the cluster's tags.

    Args:
        make: makes the resource and returns its identifier.
        find: returns the identifier of the resource with the cluster's tags; None: there is none.

    Raises:
        CloudError: there is none after the error; the error is that of `make`.
    """
    try:
        return make()
    except CloudError as error:
        tries = TRIES if is_ambiguous(error) or any(word in error.code for word in TAKEN) else 1
        if (adopted := find_later(find, tries)) is None:
            raise
        return adopted


def repeat(act: Callable[[], T], unsettled: Container[str] = ()) -> T:
    """Repeats a call that changes nothing where it has succeeded, while its answer gets lost.

    Args:
        act: makes the call.
        unsettled: codes of errors about a resource that was made seconds ago.

    Raises:
        CloudError: another error, or the last one.
    """
    for _ in range(TRIES - 1):
        try:
            return act()
        except CloudError as error:
            if not is_ambiguous(error) and error.code not in unsettled:
                raise
            time.sleep(BETWEEN_S)
    return act()


def find_later(find: Callable[[], T | None], tries: int) -> T | None:
    """Searches several times; None if AWS lists nothing, or does not answer."""
    for number in range(tries):
        if number:
            time.sleep(BETWEEN_S)
        with suppress(CloudError):
            if (resource := find()) is not None:
                return resource
    return None


def settle(act: Callable[[], T]) -> T:
    """Repeats a call while EC2 does not know a new profile, group or key pair: some seconds.

    Raises:
        CloudError: another error, or EC2 still does not know it.
    """
    for _ in range(SETTLE_TRIES):
        try:
            return act()
        except CloudError as error:
            if not is_unsettled(error):
                raise
            time.sleep(SETTLE_S)
    return act()


def is_unsettled(error: CloudError) -> bool:
    """True if EC2 does not know a resource that may have been made seconds ago."""
    profile = error.code.startswith("Invalid") and "profile" in str(error).lower()
    return profile or error.code in UNSETTLED
