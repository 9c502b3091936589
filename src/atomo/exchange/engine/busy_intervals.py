"""Intervals in which some of several threads were busy."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import final

__all__ = ["BusyIntervals"]


@final
class BusyIntervals:
    """Beginnings and ends. Intervals may overlap."""

    def __init__(self) -> None:
        self._intervals: list[tuple[float, float]] = []  # seconds

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Records how long its block takes."""
        started = time.perf_counter()
        yield
        self._intervals.append((started, time.perf_counter()))

    def __or__(self, other: "BusyIntervals") -> "BusyIntervals":
        """Returns the intervals of both."""
        union = BusyIntervals()
        union._intervals = self._intervals + other._intervals
        return union

    def covered_s(self, until: float = math.inf) -> float:
        """Returns the seconds in which any thread was busy, each counted once.

        Args:
            until: a time of the performance counter; later intervals do not count.
        """
        covered, reached = 0.0, -math.inf
        for start, stop in sorted(self._intervals):
            covered += max(0.0, min(stop, until) - max(start, reached))
            reached = max(reached, stop)
        return covered

    def total_s(self) -> float:
        """Returns the seconds of all intervals, whether they overlap or not."""
        return sum((stop - start for start, stop in self._intervals), 0.0)
