"""The dead ranks that one rank knows of."""

from collections.abc import Iterable
from typing import final

__all__ = ["DeadPeers"]


@final
class DeadPeers:
    """The dead ranks that one rank knows of, and those it ignores."""

    def __init__(self) -> None:
        self._known: set[int] = set()
        self._ignored: set[int] = set()

    def add(self, ranks: Iterable[int]) -> None:
        """Records dead ranks; some may be known already."""
        self._known |= {*ranks}

    def ignore_rank(self, rank: int) -> None:
        """Records a dead rank that no wait reports any more."""
        self._known.add(rank)
        self._ignored.add(rank)

    def __contains__(self, rank: int) -> bool:
        return rank in self._known

    def is_ignored(self, rank: int) -> bool:
        """True if no wait reports this rank any more."""
        return rank in self._ignored

    def dead_peer(self, source: int | None = None) -> int | None:
        """Returns a dead rank that makes a wait for `source`, or for any rank, fail; None: there is
        none.
        """
        if source is not None:
            return source if source in self._known else None
        return min(self._known - self._ignored, default=None)
