"""What becomes of each gradient that the master asks for, and of the images that it is of.

A worker that is given a step owes one gradient. It counts in that step, or comes too late for it
or is refused, and is taken back by its worker, or is lost with its worker, which is all that can
become of it:

    asked = used + late + refused + lost, and those that are still under way
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import final

from atomo.errors import FrameFault

__all__ = ["GradientCounters", "GradientCounts"]


@final
@dataclass(frozen=True)
class GradientCounts:
    """Gradients since the balance before this one, one a worker and step, or their images."""

    asked: int
    used: int
    late: int
    """Too late; of them their workers were told, whose memories take back what they sent."""
    lost: int
    """With a worker that died."""
    under_way: int
    """Now: they are in the balances to come."""
    refused: int = 0
    """Not what they should be; of them too their workers were told, whose memories take them back.
    """
    refusals: tuple[tuple[int, FrameFault], ...] = ()
    """Of whom frames were refused, and why, once for each; also where that cost no gradient."""


@final
class GradientCounters:
    """Counts gradients, or images, once when they are asked for, and once when it is known what
    they came to.
    """

    def __init__(self) -> None:
        self._asked = self._used = self._late = self._lost = self._refused = 0

    def ask(self, count: int) -> None:
        """Workers were given so many."""
        self._asked += count

    def use(self, count: int) -> None:
        """So many are in a step that is closed."""
        self._used += count

    def late(self, count: int) -> None:
        """A worker is told that so many came too late."""
        self._late += count

    def refuse(self, count: int) -> None:
        """A worker is told that so many were refused."""
        self._refused += count

    def lose(self, count: int) -> None:
        """A worker died that owed so many, or that was yet to be told that they did not count."""
        self._lost += count

    @property
    def counts(self) -> tuple[int, ...]:
        """What was counted since somebody last asked for the balance."""
        return self._asked, self._used, self._late, self._lost, self._refused

    def add(self, counts: Sequence[int]) -> None:
        """These were counted before, by somebody else."""
        asked, used, late, lost, refused = counts
        self._asked, self._used = self._asked + asked, self._used + used
        self._late, self._lost = self._late + late, self._lost + lost
        self._refused += refused

    def gradient_counts(
        self, under_way: int, refusals: Iterable[tuple[int, FrameFault]] = ()
    ) -> GradientCounts:
        """What was counted since this was last asked, and whose frames were refused."""
        counts = self._asked, self._used, self._late, self._lost
        balance = GradientCounts(*counts, under_way, self._refused, tuple(refusals))
        self._asked = self._used = self._late = self._lost = self._refused = 0
        return balance
