"""Waiting by testing again and again, until it is so or the time is up."""

import os
import time
from collections.abc import Callable
from typing import Final, TypeVar, final

__all__ = ["Deadline"]

SPINS: Final = 50  # tests before the first pause: a message that is already there costs no pause
LONGEST_PAUSE_S: Final = (
    2e-4  # a core shared with a computing rank is worth more than an answer now
)
T = TypeVar("T")


@final
class Deadline:
    """A bound on one wait."""

    def __init__(self, timeout_s: float, pause_s: float | None = None) -> None:
        """Of `timeout_s`, with pauses of `pause_s`; None: none at first, then short ones."""
        self._end, self._pause_s = time.monotonic() + timeout_s, pause_s

    def poll(self, test: Callable[[], T]) -> T | None:
        """The first true value of `test`, or None once the time is up."""
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
    """Yields the core at first; sleeps once the wait turns out to be a long one."""
    if spins < SPINS:
        os.sched_yield()
    else:
        time.sleep(min(LONGEST_PAUSE_S, 1e-6 * spins))
