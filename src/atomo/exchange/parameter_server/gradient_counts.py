"""Counts of the outcomes of gradients and of their images.

A worker with a step to compute owes one gradient. Each gradient has one of these outcomes: it is
used in its step; it is late or refused, and its worker takes it back; it is lost with its worker.

    asked = used + late + refused + lost + under way
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import final

from atomo.errors import FrameFault

__all__ = ["GradientCounters", "GradientCounts"]


@final
@dataclass(frozen=True)
class GradientCounts:
    """Counts of gradients, one for each worker and step, or of their images, since the last
    balance.
    """

    asked: int
    used: int
    late: int
    """Too late: their workers take them back into the memory."""
    lost: int
    """Lost with a dead worker."""
    under_way: int
    """Not finished yet: part of a later balance."""
    refused: int = 0
    """Malformed: their workers take them back into the memory."""
    refusals: tuple[tuple[int, FrameFault], ...] = ()
    """Sender and fault of each refused frame, even if no gradient was lost."""

    def plus(self, other: "GradientCounts") -> "GradientCounts":
        """Returns the counts of two balances together."""
        names = "asked", "used", "late", "lost", "under_way", "refused", "refusals"
        sums = {name: getattr(self, name) + getattr(other, name) for name in names}
        return GradientCounts(**sums)


@final
class GradientCounters:
    """Counters of gradients or images: of those asked for, and of each outcome."""

    def __init__(self) -> None:
        self._asked = self._used = self._late = self._lost = self._refused = 0

    def add_asked(self, count: int) -> None:
        """Counts gradients that workers were commanded to compute."""
        self._asked += count

    def add_used(self, count: int) -> None:
        """Counts gradients of a closed step."""
        self._used += count

    def add_late(self, count: int) -> None:
        """Counts late gradients, once their worker has the LATE flag."""
        self._late += count

    def add_refused(self, count: int) -> None:
        """Counts refused gradients, once their worker has the LATE flag."""
        self._refused += count

    def add_lost(self, count: int) -> None:
        """Counts gradients lost with a dead worker."""
        self._lost += count

    @property
    def counts(self) -> tuple[int, ...]:
        """Counts since the last balance."""
        return self._asked, self._used, self._late, self._lost, self._refused

    def restore(self, counts: Sequence[int]) -> None:
        """Adds the counts of a checkpoint."""
        asked, used, late, lost, refused = counts
        self._asked, self._used = self._asked + asked, self._used + used
        self._late, self._lost = self._late + late, self._lost + lost
        self._refused += refused

    def gradient_counts(
        self, under_way: int, refusals: Iterable[tuple[int, FrameFault]] = ()
    ) -> GradientCounts:
        """Returns the counts since the last call, with these refusals, and resets them."""
        counts = self._asked, self._used, self._late, self._lost
        balance = GradientCounts(*counts, under_way, self._refused, tuple(refusals))
        self._asked = self._used = self._late = self._lost = self._refused = 0
        return balance
