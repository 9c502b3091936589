"""The times at which fragments of a model are exchanged, and the fragments.

Douillard et al., "Streaming DiLoCo with overlapping communication", 2025.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from atomo.core.names import described
from atomo.errors import ConfigError

__all__ = ["Rounds", "split_fragments"]


@final
@dataclass(frozen=True)
class Rounds:
    """The steps after which exchanges begin and end. A round exchanges each fragment once.

    Attributes:
        every: the number of optimizer steps in a round.
        fragments: the number of fragments, which divides `every`.
        overlap: the number of steps between the beginning and the end of an exchange.
        mix: the weight of a replica's own weights when it continues from the anchor.
    """

    every: int = 30
    fragments: int = 1
    overlap: int = 0
    mix: float = 0.0

    def __post_init__(self) -> None:
        for name, least in (("every", 1), ("fragments", 1), ("overlap", 0)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ConfigError(f"{name} must be a whole number from {least}, got {value!r}")
        if self.every % self.fragments:
            raise ConfigError(
                f"every={self.every} must be a multiple of fragments={self.fragments}: one "
                "fragment is exchanged every every/fragments steps"
            )
        if self.overlap >= self.period:
            raise ConfigError(
                f"overlap={self.overlap} must be below every/fragments = {self.period}: one "
                "fragment is in flight at a time"
            )
        if type(self.mix) not in (int, float) or not 0 <= self.mix <= 1:
            raise ConfigError(f"mix must be a number in [0, 1], got {described(self.mix)}")

    @property
    def period(self) -> int:
        """The number of steps from one exchange to the next."""
        return self.every // self.fragments

    def begins(self, steps: int) -> int | None:
        """Returns the fragment whose exchange begins after so many steps; None: no exchange does.

        >>> [Rounds(6, 2, overlap=1).begins(steps) for steps in range(1, 7)]
        [None, 0, None, None, 1, None]
        """
        return self.ends(steps + self.overlap)

    def ends(self, steps: int) -> int | None:
        """Returns the fragment whose exchange ends after so many steps; None: no exchange does.

        >>> [Rounds(6, 2, overlap=1).ends(steps) for steps in range(1, 7)]
        [None, None, 0, None, None, 1]
        """
        count, rest = divmod(steps, self.period)
        return None if rest or not count else (count - 1) % self.fragments

    def __str__(self) -> str:
        return f"every={self.every}, fragments={self.fragments}, overlap={self.overlap}"


def split_fragments(sizes: Mapping[str, int], count: int) -> list[list[str]]:
    """Divides parameters, in their order, into fragments of similar size.

    >>> split_fragments({"a": 5, "b": 1, "c": 4, "d": 1}, 2)
    [['a'], ['b', 'c', 'd']]

    Args:
        sizes: the number of entries of each parameter.
        count: the number of fragments.

    Raises:
        ConfigError: there are fewer parameters than fragments.
    """
    names = [*sizes]
    if count > len(names):
        raise ConfigError(
            f"fragments={count} is above the number of parameters that train, {len(names)}"
        )
    fragments: list[list[str]] = []
    rest = sum(sizes.values())
    while count > 1:
        length = prefix([sizes[name] for name in names[: len(names) - count + 1]], rest / count)
        fragment, names = names[:length], names[length:]
        fragments.append(fragment)
        rest, count = rest - sum(sizes[name] for name in fragment), count - 1
    return [*fragments, names]


def prefix(sizes: Sequence[int], goal: float) -> int:
    """Returns how many of the first sizes have a sum nearest to a goal: 1 at least."""
    best, total = 1, 0
    distance = abs(sizes[0] - goal)
    for number, size in enumerate(sizes, 1):
        total += size
        if abs(total - goal) < distance:
            best, distance = number, abs(total - goal)
    return best
