"""The places of a job without a master: who waits for one, and where all meet to fill them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import final

from atomo.communicators.crew.standing import Standing, Verdict, filled, judge
from atomo.errors import TooFewWorkers

__all__ = ["Places"]


@final
class Places:
    """What the last verdict says of them, and so alike on all who take part."""

    def __init__(self, ranks: int, count: int, least: int) -> None:
        """All are taken.

        Args:
            ranks: of the job.
            count: how many of them have a place; the others wait.
            least: how many must be left, those who wait among them.
        """
        self.count = count
        self.waiting = tuple(range(count, ranks))
        """Who waits for one, the lowest rank first."""
        self._ranks, self._least, self._edge = ranks, least, 0
        self._missed: set[int] = set()  # who waited, and is gone, as this rank has heard

    def go_by(self, verdict: Verdict) -> None:
        """From here on it is as this says."""
        self.waiting, self._edge = verdict.waiting, verdict.edge

    def check(self, members: Sequence[int]) -> None:
        """Raises TooFewWorkers where fewer are left than must be."""
        left = {*members, *self.waiting}
        if len(left) < self._least:
            dead = sorted({*range(self._ranks)} - left)
            raise TooFewWorkers(
                f"rank {dead} of {self._ranks} died, which leaves {len(left)}; --min-workers is "
                f"{self._least}"
            )

    def has_all_meet(self, step: int, members: Sequence[int]) -> bool:
        """Whether none of these begins the step before all have met."""
        return self._is_open(members) and step == self._edge

    def miss(self, is_gone: Callable[[int], bool]) -> Iterator[str]:
        """Takes in which of those who wait are gone; a line for each of whom that is news."""
        for rank in self.waiting:
            if is_gone(rank) and rank not in self._missed:
                self._missed.add(rank)
                yield f"spare {rank} is gone; {len({*self.waiting} - self._missed)} are left"

    def verdict_on(
        self, standings: Mapping[int, Standing], members: Sequence[int], *, fills: bool
    ) -> Verdict:
        """The verdict on the standings of those of the members who are left.

        Args:
            standings: theirs.
            members: who took part.
            fills: whether those who wait take places now, as all have met.
        """
        waiting = [rank for rank in self.waiting if rank not in self._missed]
        # Nobody has gone further than where all are to meet, whoever has died since that was said.
        verdict = judge(standings, waiting, self._edge if self._is_open(members) else None)
        enough = len(standings) + len(waiting) >= self._least
        return filled(verdict, self.count) if fills and enough else verdict

    def _is_open(self, members: Sequence[int]) -> bool:
        """Whether there is a place that somebody waits for."""
        return bool(self.waiting) and len(members) < self.count
