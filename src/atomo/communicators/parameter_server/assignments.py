"""Which worker computes which step, and what each is told of the gradient before."""

from collections.abc import Iterable
from typing import final

from atomo.communicators.parameter_server.accounts import Accounts, Balance
from atomo.wire import Flag

__all__ = ["Assignments"]


@final
class Assignments:
    """A worker that was given a step owes its gradient, and whoever was late is told so, once."""

    def __init__(self) -> None:
        self.owed: dict[int, int] = {}
        """By worker, the step whose gradient it owes."""
        self._late: set[int] = set()  # and not told so yet
        self._accounts = Accounts()

    def give(self, workers: Iterable[int], step: int) -> None:
        """These compute the gradient of `step` from now on."""
        given = dict.fromkeys(workers, step)
        self.owed |= given
        self._accounts.ask(len(given))

    def move(self, worker: int, step: int) -> None:
        """It computes the gradient of this step, in place of the one that it could not begin."""
        self.owed[worker] = step

    def excuse(self, worker: int) -> None:
        """It could not begin, and owes nothing any more."""
        del self.owed[worker]
        self._accounts.ask(-1)

    def complete(self, worker: int) -> None:
        """Its gradient is here, in time for its step."""
        del self.owed[worker]

    def late(self, worker: int) -> None:
        """Its gradient is here and counts in no step."""
        self.owed.pop(worker, None)
        self._late.add(worker)

    def verdict(self, worker: int) -> Flag:
        """What the next message tells a worker of its last gradient."""
        if worker not in self._late:
            return Flag.NONE
        self._late.discard(worker)
        self._accounts.late()
        return Flag.LATE

    def use(self, workers: Iterable[int]) -> None:
        """The step that their gradients are in is closed."""
        self._accounts.use(workers)

    def lose(self, worker: int) -> None:
        """A worker is gone, and with it what it owed or had to take back."""
        if worker in self.owed or worker in self._late:
            self._accounts.lose()
        self.owed.pop(worker, None)
        self._late.discard(worker)

    def abandon(self, complete: Iterable[int], living: Iterable[int]) -> None:
        """The step that these were complete in is never closed: what they sent comes back."""
        left = {*living}
        for worker in complete:
            if worker in left:
                self._late.add(worker)
            else:
                self._accounts.lose()

    def balance(self) -> Balance:
        """What became of the gradients that were asked for, since this was last asked."""
        return self._accounts.balance(len(self.owed) + len(self._late))
