"""Which steps count after a death: what each rank knows, and what follows from it.

A rank says its report of a step once it has the mean of all of it, and takes the step once it has
the reports of all who share it. So a step that anybody has taken is one whose mean everybody has,
and whose reports, all of them, are with someone who is left, or were with the dead alone. Where all
reports are known among those who are left, the step counts for all of them; where not, none of them
has taken it, and it goes on without the dead.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

from atomo.communicators.report import Report

__all__ = ["Reports", "Standing", "Verdict", "judge"]

Reports = Mapping[int, Report]
"""Of ranks, by their numbers in the job."""


@final
@dataclass(frozen=True)
class Standing:
    """What a rank has when a step is interrupted."""

    done: int
    """The last step that counts here."""
    last: Reports
    """All of that step."""
    open: Reports
    """Those of the step after it that came."""


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
    joining: tuple[int, ...] = ()
    """Who takes part, with them, from the step `edge` on."""

    @property
    def edge(self) -> int:
        """From this step on those who are left share the images: the open one is divided already,
        and some may have computed their part of it.
        """
        return self.step + 2


def judge(
    standings: Mapping[int, Standing], members: Iterable[int], spares: Sequence[int] = ()
) -> Verdict:
    """The verdict on the standings of all who are left.

    Args:
        standings: by rank.
        members: who took part until now, the dead among them.
        spares: who takes part once the open step is done.
    """
    step = max(one.done for one in standings.values())
    reports = next(one.last for one in standings.values() if one.done == step)
    known: dict[int, Report] = {}
    if all(one.done == step for one in standings.values()):
        known = {rank: r for one in standings.values() for rank, r in one.open.items()}
    if {*members} <= known.keys():
        step, reports = step + 1, known
    return Verdict(step, dict(sorted(reports.items())), tuple(sorted(standings)), tuple(spares))
