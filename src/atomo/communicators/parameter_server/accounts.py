"""What becomes of each gradient that the master asks for.

A worker that is given a step owes one gradient. It counts in that step, or comes too late for it
and is taken back by its worker, or is lost with its worker, which is all that can become of it:

    asked = used + late + lost, and those that are still under way
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

__all__ = ["Accounts", "Balance"]


@final
@dataclass(frozen=True)
class Balance:
    """Gradients since the balance before this one, one a worker and step."""

    asked: int
    used: int
    late: int
    """Too late; of them their workers were told, whose memories take back what they sent."""
    lost: int
    """With a worker that died."""
    under_way: int
    """Now: they are in the balances to come."""


@final
class Accounts:
    """Counts each gradient once when it is asked for, and once when it is known what it came to."""

    def __init__(self) -> None:
        self._asked = self._used = self._late = self._lost = 0

    def ask(self, count: int) -> None:
        """So many workers were given a step."""
        self._asked += count

    def use(self, workers: Iterable[int]) -> None:
        """Their gradients are in a step that is closed."""
        self._used += len([*workers])

    def late(self) -> None:
        """A worker is told that its gradient came too late."""
        self._late += 1

    def lose(self) -> None:
        """A worker died that owed one, or that was yet to be told that it was late."""
        self._lost += 1

    def balance(self, under_way: int) -> Balance:
        """What was counted since this was last asked."""
        balance = Balance(self._asked, self._used, self._late, self._lost, under_way)
        self._asked = self._used = self._late = self._lost = 0
        return balance
