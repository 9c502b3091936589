"""The split of each step's images among the members of an elastic group."""

from collections.abc import Sequence
from typing import final

from atomo.exchange.elastic.progress import Reports
from atomo.exchange.parameter_server.gradient_counts import GradientCounts
from atomo.exchange.sharing import part

__all__ = ["SampleSplit"]


@final
class SampleSplit:
    """The ranks that share each step: constant until `set_members`."""

    def __init__(self, images: int, members: Sequence[int]) -> None:
        """Creates a split of `images` images a step among these members, from the first step on."""
        self._images = images
        self.prescaled = False
        """True if ranks weigh their parts by samples before they send them."""
        self._members_from = {0: tuple(members)}  # by the first step that is divided so

    def set_members(self, first: int, members: Sequence[int]) -> None:
        """Sets the members from a step on, in place of any earlier choice for those steps."""
        early = {step: sharers for step, sharers in self._members_from.items() if step < first}
        self._members_from = early | {first: tuple(members)}

    def members_at(self, step: int) -> tuple[int, ...]:
        """Returns the ranks that divide the images of a step; some may be dead by now."""
        return self._members_from[max(first for first in self._members_from if first <= step)]

    def shares(self, step: int, members: Sequence[int]) -> tuple[float, ...]:
        """Returns the weight of each living member in the mean of a step, by its images; empty if
        all weigh the same.
        """
        if self.prescaled:
            return ()
        sharing = self.members_at(step)
        images = [len(part(self._images, sharing.index(rank), len(sharing))) for rank in members]
        whole = sum(images)
        return () if len({*images}) == 1 else tuple(count / whole for count in images)

    def balances(
        self, step: int, reports: Reports, local_steps: int = 1
    ) -> tuple[GradientCounts, GradientCounts]:
        """Returns the gradient counts and the image counts of a committed step.

        Args:
            step: the number of the step, or of a round of local steps.
            reports: the reports of the members that counted.
            local_steps: the number of steps in the round.
        """
        sharing, used = len(self.members_at(step)), len(reports)
        images = round(sum(report.images for report in reports.values()))
        return balance_of(sharing, used), balance_of(self._images * local_steps, images)


def balance_of(due: int, used: int) -> GradientCounts:
    """Returns the counts of a step that waits for all living members: every gradient that was not
    used was lost.
    """
    return GradientCounts(asked=due, used=used, late=0, lost=due - used, under_way=0)
