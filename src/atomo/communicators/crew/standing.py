"""Which steps count after a death: what each rank knows, and what follows from it.

A rank says its report of a step once it has the mean of all of it, and takes the step once it has
the reports of all who share it. So a step that anybody has taken is one whose mean everybody has.
Where one who is left has taken it, all others do, with the reports that this one has; where none
has, it goes on without the dead.

Ranks that wait take the places of the dead before a step that nobody has begun. All who take part
meet there, as a death has had rank 0 say which step that is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

from atomo.communicators.report import Report

__all__ = ["Reports", "Standing", "Verdict", "filled", "judge"]

Reports = Mapping[int, Report]
"""Of ranks, by their numbers in the job."""


@final
@dataclass(frozen=True)
class Standing:
    """What a rank has when a step is interrupted."""

    done: int
    """The last step that counts here."""
    reports: Reports
    """Of that step."""


@final
@dataclass(frozen=True)
class Verdict:
    """What all who are left go by."""

    step: int
    """The last step that counts, for all of them."""
    reports: Reports
    """Of that step."""
    members: tuple[int, ...]
    """Who goes on."""
    edge: int
    """From this step on they share the images."""
    waiting: tuple[int, ...] = ()
    """Who waits for a place."""


def judge(
    standings: Mapping[int, Standing], waiting: Sequence[int] = (), edge: int | None = None
) -> Verdict:
    """The verdict on the standings of all who are left, by rank.

    Args:
        standings: theirs.
        waiting: the ranks that wait for a place.
        edge: a step that nobody has begun, as all meet before it; None: there is none. Then the
            open one is divided already, and some may have computed their part of it.
    """
    furthest = max(standings.values(), key=lambda one: one.done)
    first = furthest.done + 2 if edge is None else edge
    return Verdict(furthest.done, furthest.reports, tuple(sorted(standings)), first, tuple(waiting))


def filled(verdict: Verdict, places: int) -> Verdict:
    """The same once those who wait have taken the places that are free, the lowest rank first."""
    free = max(0, places - len(verdict.members))
    members = sorted(verdict.members + verdict.waiting[:free])
    return replace(verdict, members=tuple(members), waiting=verdict.waiting[free:])
