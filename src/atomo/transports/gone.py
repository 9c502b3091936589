"""Which ranks are gone, and which of them nobody misses any more."""

from collections.abc import Iterable
from typing import final

__all__ = ["Gone"]


@final
class Gone:
    """What one rank knows of the deaths of others."""

    def __init__(self) -> None:
        self._known: set[int] = set()
        self._forgotten: set[int] = set()

    def add(self, ranks: Iterable[int]) -> None:
        """These are gone; some may be known already."""
        self._known |= {*ranks}

    def forget(self, rank: int) -> None:
        """Nobody misses it from now on."""
        self._known.add(rank)
        self._forgotten.add(rank)

    def __contains__(self, rank: int) -> bool:
        return rank in self._known

    def is_forgotten(self, rank: int) -> bool:
        """Whether nobody misses it."""
        return rank in self._forgotten

    def missed(self, source: int | None = None) -> int | None:
        """Which rank a wait for `source`, or for any, waits for in vain; None: for none."""
        if source is not None:
            return source if source in self._known else None
        return min(self._known - self._forgotten, default=None)
