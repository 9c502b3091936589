"""The slots of a job without a master: the spares that wait for them, and the step at which they
are filled.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import final

from atomo.errors import TooFewWorkers
from atomo.exchange.elastic.progress import RankProgress, Verdict, decide, fill_slots

__all__ = ["SpareSlots"]


@final
class SpareSlots:
    """The slots and spares as of the last verdict, equal on all members."""

    def __init__(self, ranks: int, count: int, min_workers: int, open_steps: int = 1) -> None:
        """Slots that are all taken.

        Args:
            ranks: ranks of the job.
            count: number of slots; the other ranks are spares.
            min_workers: smallest number of living ranks, spares included.
            open_steps: as of `decide`.
        """
        self._open_steps = open_steps
        self.count = count
        self.waiting = tuple(range(count, ranks))
        """The spares, lowest rank first."""
        self._ranks, self._min_workers, self._meeting_step = ranks, min_workers, 0
        self._dead_spares: set[int] = set()  # dead spares that this rank knows of

    def apply(self, verdict: Verdict) -> None:
        """Takes spares and meeting step from a verdict."""
        self.waiting, self._meeting_step = verdict.waiting, verdict.first_step

    def check(self, members: Sequence[int]) -> None:
        """Raises TooFewWorkers if fewer ranks live than the minimum."""
        living = {*members, *self.waiting}
        if len(living) < self._min_workers:
            dead = sorted({*range(self._ranks)} - living)
            raise TooFewWorkers(
                f"rank {dead} of {self._ranks} died, which leaves {len(living)}; --min-workers is "
                f"{self._min_workers}"
            )

    def is_meeting_step(self, step: int, members: Sequence[int]) -> bool:
        """True if the members meet before this step."""
        return self._is_open(members) and step == self._meeting_step

    def note_dead_spares(self, is_dead: Callable[[int], bool]) -> Iterator[str]:
        """Records dead spares; yields a message for each new one."""
        for rank in self.waiting:
            if is_dead(rank) and rank not in self._dead_spares:
                self._dead_spares.add(rank)
                yield f"spare {rank} is gone; {len({*self.waiting} - self._dead_spares)} are left"

    def verdict(
        self, progress: Mapping[int, RankProgress], members: Sequence[int], *, fills: bool
    ) -> Verdict:
        """Returns the verdict on the progress of all living members.

        Args:
            progress: their progress, by rank.
            members: the members so far.
            fills: True if spares take slots now, as all members have met.
        """
        waiting = [rank for rank in self.waiting if rank not in self._dead_spares]
        # No member can have passed the meeting step, even if ranks died since.
        meeting_step = self._meeting_step if self._is_open(members) else None
        verdict = decide(progress, waiting, meeting_step, self._open_steps)
        enough = len(progress) + len(waiting) >= self._min_workers
        return fill_slots(verdict, self.count) if fills and enough else verdict

    def _is_open(self, members: Sequence[int]) -> bool:
        """True if a slot is free and a spare waits for it."""
        return bool(self.waiting) and len(members) < self.count
