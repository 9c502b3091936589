"""Methods to cut a list of tensors into consecutive groups, each sent as one message.

Each gives its cuts: for every group the number of tensors up to its end, increasing, so that the
last cut is the number of tensors. A method is one function and one line in
`GROUPING_METHODS`. Two methods look at more than sizes: their cuts are known once costs are
measured, at the start of a job (`fusion/searches.py`), and become `cuts:3,7,12`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Final, final

from atomo.core.names import resolve
from atomo.errors import ConfigError

__all__ = ["ONE", "Grouping", "bucket_caps", "cut_at", "grouping", "megabytes"]

MIB: Final = 2**20
MOST_DIGITS: Final = 10
CALL: Final = re.compile(r"\s*([\w-]+)\s*(?::\s*(\S+)\s*)?")


def group_per_tensor(sizes: Sequence[int], amount: float) -> tuple[int, ...]:
    """Makes a group of each tensor."""
    del amount
    return tuple(range(1, len(sizes) + 1))


def single_group(sizes: Sequence[int], amount: float) -> tuple[int, ...]:
    """Makes one group of all tensors."""
    del amount
    return (len(sizes),)


def equal_counts(sizes: Sequence[int], amount: float) -> tuple[int, ...]:
    """Cuts tensors into groups of equal counts, some of one more; at most one group per tensor."""
    tensors, groups = len(sizes), min(int(amount), len(sizes))
    return tuple(tensors * (group + 1) // groups for group in range(groups))


def equal_bytes(sizes: Sequence[int], amount: float) -> tuple[int, ...]:
    """Groups of at most `amount` megabytes (1e6 bytes), but for tensors that alone have more."""
    cuts: list[int] = []
    filled = 0
    for tensor, size in enumerate(sizes):
        if filled and filled + size > amount * 1e6:
            cuts.append(tensor)
            filled = 0
        filled += size
    return (*cuts, len(sizes))


def unknown(sizes: Sequence[int], amount: float) -> tuple[int, ...]:
    """Raises ConfigError: the cuts do not follow from sizes."""
    del sizes, amount
    raise ConfigError("fusion auto and mergecomp are found where a job starts, and nowhere else")


@final
@dataclass(frozen=True)
class GroupingMethod:
    """One way to group."""

    cut: Callable[[Sequence[int], float], tuple[int, ...]]
    """From the bytes of each tensor and the amount to the cuts."""
    amount: str = ""
    """Unit of the number after the colon; empty: there is no number."""
    whole: bool = False
    """True if that is a whole number."""
    searched: bool = False
    """True if the cuts are computed from measured costs."""


CUTS: Final = "cuts"
GROUPING_METHODS: Final[Mapping[str, GroupingMethod]] = MappingProxyType(
    {
        "auto": GroupingMethod(unknown, searched=True),
        "bytes": GroupingMethod(equal_bytes, "megabytes of a message"),
        "count": GroupingMethod(equal_counts, "messages", whole=True),
        CUTS: GroupingMethod(unknown),
        "layer": GroupingMethod(group_per_tensor),
        "mergecomp": GroupingMethod(unknown, searched=True),
        "one": GroupingMethod(single_group),
    }
)


@final
@dataclass(frozen=True)
class Grouping:
    """A method and its amount, or the cuts themselves."""

    name: str
    amount: float = 0.0
    ends: tuple[int, ...] = ()

    @property
    def searched(self) -> bool:
        """True if the cuts are computed from measured costs, at the start of a job."""
        return GROUPING_METHODS[self.name].searched

    def cuts(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """Returns the cuts of tensors of so many bytes; none of no tensors.

        Raises:
            ConfigError: the cuts are of another number of tensors, or need measured costs.
        """
        if self.ends and sizes and self.ends[-1] != len(sizes):
            raise ConfigError(
                f"fusion {self}: the last cut is the number of parameters, {len(sizes)} of them"
            )
        if self.ends:
            return self.ends if sizes else ()
        return GROUPING_METHODS[self.name].cut(sizes, self.amount) if sizes else ()

    def __str__(self) -> str:
        if self.ends:
            return f"{self.name}:{','.join(map(str, self.ends))}"
        return f"{self.name}:{self.amount:g}" if GROUPING_METHODS[self.name].amount else self.name


ONE: Final = Grouping("one")


def megabytes(amount: float) -> Grouping:
    """Groups of at most so many megabytes."""
    return Grouping("bytes", amount)


def cut_at(ends: Sequence[int]) -> Grouping:
    """Returns groups that end after these numbers of tensors.

    Raises:
        ConfigError: these numbers do not increase from 1.
    """
    if not ends or any(after <= before for before, after in pairwise((0, *ends))):
        raise ConfigError(f"fusion {CUTS}:{','.join(map(str, ends))}: numbers increase from 1")
    return Grouping(CUTS, ends=tuple(ends))


def bucket_caps(cuts: Sequence[int], sizes: Sequence[int]) -> tuple[float, ...]:
    """Returns the groups as the `bucket_cap_mb_list` of PyTorch's DistributedDataParallel.

    DDP closes a bucket as soon as it has as many bytes as its cap says, so that the cap of a group
    is exactly the size of the group, in MiB: a float holds every number of bytes in MiB exactly.

    Args:
        cuts: how many tensors are in groups by the end of each.
        sizes: bytes of each tensor, in the order in which gradients are there.

    >>> bucket_caps((1, 3), (2**20, 2**19, 2**18))
    (1.0, 0.75)
    """
    return tuple(sum(sizes[start:stop]) / MIB for start, stop in pairwise((0, *cuts)))


def read_cuts(text: str, argument: str | None) -> Grouping:
    """Returns the cuts that `--fusion` names."""
    words = (argument or "").split(",")
    if not all(word.isdecimal() and len(word) < MOST_DIGITS for word in words):
        raise ConfigError(
            f"fusion {text!r}: {CUTS} needs how many parameters are sent by the end of each "
            f"message, the last one first as in a backward pass, e.g. {CUTS}:3,7,12"
        )
    return cut_at([int(word) for word in words])


def grouping(text: str) -> Grouping:
    """Parses `--fusion`.

    >>> str(grouping("Layer")), str(grouping("count: 8")), str(grouping("bytes:0.5"))
    ('layer', 'count:8', 'bytes:0.5')
    >>> grouping("cuts:2,3").cuts([400, 80, 4])
    (2, 3)

    Raises:
        ConfigError: the method is unknown, or its number is missing or out of range.
    """
    match = CALL.fullmatch(text)
    name = resolve("fusion", match[1] if match else text, GROUPING_METHODS)
    method, argument = GROUPING_METHODS[name], match[2] if match else None
    if name == CUTS:
        return read_cuts(text, argument)
    if not method.amount:
        if argument is not None:
            raise ConfigError(f"fusion {text!r}: {name} takes no number")
        return Grouping(name)
    try:
        amount = float(argument or "")
    except ValueError:
        raise ConfigError(
            f"fusion {text!r}: {name} needs its number of {method.amount}, e.g. {name}:4"
        ) from None
    if not 0 < amount < 1e6 or (method.whole and amount % 1):
        kind = "a whole number from 1" if method.whole else "a number above 0"
        raise ConfigError(
            f"fusion {text!r}: the number of {method.amount} is {kind} to below 1000000"
        )
    return Grouping(name, amount)
