"""Ways to cut a list of tensors into consecutive groups, of which each travels as one message.

Each gives its cuts: for every group the number of tensors up to its end, increasing, so that the
last cut is the number of tensors. A way is one function and one line in `WAYS`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, final

from atomo.errors import ConfigError
from atomo.names import resolve

__all__ = ["ONE", "Grouping", "grouping", "megabytes"]

CALL: Final = re.compile(r"\s*([\w-]+)\s*(?::\s*(\S+)\s*)?")


def layer_wise(sizes: Sequence[int], amount: float) -> tuple[int, ...]:
    """Each tensor is a group."""
    del amount
    return tuple(range(1, len(sizes) + 1))


def together(sizes: Sequence[int], amount: float) -> tuple[int, ...]:
    """All tensors are one group."""
    del amount
    return (len(sizes),)


def equal_counts(sizes: Sequence[int], amount: float) -> tuple[int, ...]:
    """So many groups of as many tensors each, or of one more; at most one group a tensor."""
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


@final
@dataclass(frozen=True)
class Way:
    """One way to group."""

    cut: Callable[[Sequence[int], float], tuple[int, ...]]
    """From the bytes of each tensor and the amount to the cuts."""
    amount: str = ""
    """What the number behind the colon is; none where empty."""
    whole: bool = False
    """Whether that is a whole number."""


WAYS: Final[Mapping[str, Way]] = MappingProxyType(
    {
        "bytes": Way(equal_bytes, "megabytes of a message"),
        "count": Way(equal_counts, "messages", whole=True),
        "layer": Way(layer_wise),
        "one": Way(together),
    }
)


@final
@dataclass(frozen=True)
class Grouping:
    """A way and its amount."""

    name: str
    amount: float = 0.0

    def cuts(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """The cuts of tensors of so many bytes; none of no tensors."""
        return WAYS[self.name].cut(sizes, self.amount) if sizes else ()

    def __str__(self) -> str:
        return f"{self.name}:{self.amount:g}" if WAYS[self.name].amount else self.name


ONE: Final = Grouping("one")


def megabytes(amount: float) -> Grouping:
    """Groups of at most so many megabytes."""
    return Grouping("bytes", amount)


def grouping(text: str) -> Grouping:
    """What `--fusion` says.

    >>> str(grouping("Layer")), str(grouping("count: 8")), str(grouping("bytes:0.5"))
    ('layer', 'count:8', 'bytes:0.5')

    Raises:
        ConfigError: it names no way to group, or lacks its number, or has one that it cannot be.
    """
    found = CALL.fullmatch(text)
    name = resolve("fusion", found[1] if found else text, WAYS)
    way, said = WAYS[name], found[2] if found else None
    if not way.amount:
        if said is not None:
            raise ConfigError(f"--fusion {text!r}: {name} takes no number")
        return Grouping(name)
    try:
        amount = float(said or "")
    except ValueError:
        raise ConfigError(
            f"--fusion {text!r}: {name} needs its number of {way.amount}, e.g. {name}:4"
        ) from None
    if not 0 < amount < 1e6 or (way.whole and amount % 1):
        kind = "a whole number from 1" if way.whole else "a number above 0"
        raise ConfigError(
            f"--fusion {text!r}: the number of {way.amount} is {kind} to below 1000000"
        )
    return Grouping(name, amount)
