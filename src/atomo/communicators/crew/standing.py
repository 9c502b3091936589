"""Which steps count after a death: what each rank knows, and what follows from it.

A rank says its report of a step once it has the mean of all of it, and takes the step once it has
the reports of all who share it. So a step that anybody has taken is one whose mean everybody has.
Where one who is left has taken it, all others do, with the reports that this one has; where none
has, it goes on without the dead.
"""

from collections.abc import Mapping
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

    @property
    def edge(self) -> int:
        """From this step on those who are left share the images: the open one is divided already,
        and some may have computed their part of it.
        """
        return self.step + 2


def judge(standings: Mapping[int, Standing]) -> Verdict:
    """The verdict on the standings of all who are left, by rank."""
    furthest = max(standings.values(), key=lambda one: one.done)
    return Verdict(furthest.done, furthest.reports, tuple(sorted(standings)))
