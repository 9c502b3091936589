"""Who divides the images of each step of a job without a master, and what became of them."""

from collections.abc import Sequence
from typing import final

from atomo.communicators.crew.standing import Reports
from atomo.communicators.parameter_server.accounts import Balance
from atomo.communicators.sharing import part

__all__ = ["Division"]


@final
class Division:
    """The ranks that share a step: the same ones until it is said otherwise."""

    def __init__(self, images: int, members: Sequence[int]) -> None:
        """Of each step, `images`; from the first one on, these divide them."""
        self._images = images
        self._sharers = {0: tuple(members)}  # by the first step that is divided so

    def change(self, first: int, members: Sequence[int]) -> None:
        """From a step on these divide them, whatever was said of it before."""
        early = {step: who for step, who in self._sharers.items() if step < first}
        self._sharers = early | {first: tuple(members)}

    def sharers(self, step: int) -> tuple[int, ...]:
        """The ranks that divide the images of a step, some of which may be gone by now."""
        return self._sharers[max(first for first in self._sharers if first <= step)]

    def shares(self, step: int, members: Sequence[int]) -> tuple[float, ...]:
        """What each of those who are left weighs in the mean of a step, by its images; none: all
        the same.
        """
        sharing = self.sharers(step)
        images = [len(part(self._images, sharing.index(one), len(sharing))) for one in members]
        whole = sum(images)
        return () if len({*images}) == 1 else tuple(one / whole for one in images)

    def balances(self, step: int, reports: Reports) -> tuple[Balance, Balance]:
        """What became of the gradients of a step that counts, and of their images."""
        sharing, used = len(self.sharers(step)), len(reports)
        images = round(sum(report.images for report in reports.values()))
        return book(sharing, used), book(self._images, images)


def book(asked: int, used: int) -> Balance:
    """Of a step that waits for all who are left: what is not used was lost."""
    return Balance(asked=asked, used=used, late=0, lost=asked - used, under_way=0)
