"""Waits that poll a condition until it holds or a deadline passes."""

import os
import time
from collections.abc import Callable
from typing import Final, TypeVar, final

__all__ = ["Deadline"]

YIELDS: Final = 50  # polls before the first pause: a message that is already there costs none
MAX_PAUSE_S: Final = 2e-4  # lower => earlier answers, but takes the core from a computing rank
T = TypeVar("T")


@final
class Deadline:
    """The latest end of one wait."""

    def __init__(self, timeout_s: float, pause_s: float | None = None) -> None:
        """Creates a deadline `timeout_s` seconds from now.

        Args:
            timeout_s: the longest wait, seconds.
            pause_s: pause between two polls, seconds; None: no pause at first, then short ones.
        """
        self._end, self._pause_s = time.monotonic() + timeout_s, pause_s

    def poll(self, test: Callable[[], T]) -> T | None:
        """Returns the first true value of `test`, or None once the deadline has passed."""
        spins = 0
        while not (value := test()):
            if time.monotonic() > self._end:
                return None
            spins += 1
            if self._pause_s is None:
                pause(spins)
            else:
                time.sleep(self._pause_s)
        return value


def pause(spins: int) -> None:
    """Yields the core after the first polls; sleeps in a long wait."""
    if spins < YIELDS:
        os.sched_yield()
    else:
        time.sleep(min(MAX_PAUSE_S, 1e-6 * spins))
