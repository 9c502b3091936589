"""Work in stages, a thread for each: while one thing is on its way, the next is made ready."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar, final

from atomo.integrations.lane import Lane

__all__ = ["Belt"]

T = TypeVar("T")


@final
class Belt:
    """Lanes one behind the other: each does its stage of all work in the order of submission.

    So whatever ranks do together in one of the stages, they do in the same order.
    """

    def __init__(self, *names: str) -> None:
        """A belt with a lane of each name."""
        self._lanes = [Lane(name) for name in names]

    def submit(
        self, first: Callable[[], Any], *others: Callable[[Any], Any], done: Callable[[], None]
    ) -> "Future[Any]":
        """Does a stage after the other, one in each lane; an error ends it.

        Args:
            first: in the first lane.
            others: each in the next lane, with what the one before has returned.
            done: called behind the last stage, or behind the one that failed.

        Returns:
            What the last one returns.
        """
        over: Future[Any] = Future()
        stages = [lambda _: first(), *others]

        def run(place: int, given: Any) -> None:
            try:
                found = stages[place](given)
            except BaseException as error:
                done()
                over.set_exception(error)
                return
            if place + 1 < len(stages):
                self._lanes[place + 1].submit(lambda: run(place + 1, found))
                return
            done()
            over.set_result(found)

        self._lanes[0].submit(lambda: run(0, None))
        return over

    def within(self, place: int, work: Callable[[], T]) -> T:
        """Does `work` in a lane, behind all that it was given before, and waits for it."""
        return self._lanes[place].submit(work).result()
