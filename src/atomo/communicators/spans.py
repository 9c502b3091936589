"""Stretches of time in which something was going on, in any of several threads."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import final

__all__ = ["Spans"]


@final
class Spans:
    """Begins and ends. What overlaps counts once."""

    def __init__(self) -> None:
        self._spans: list[tuple[float, float]] = []  # seconds

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Records how long its block takes."""
        started = time.perf_counter()
        yield
        self._spans.append((started, time.perf_counter()))

    def __or__(self, other: "Spans") -> "Spans":
        """Those of both."""
        both = Spans()
        both._spans = self._spans + other._spans
        return both

    def covered_s(self, until: float = math.inf) -> float:
        """Seconds in which something was going on, before `until` of the performance counter."""
        covered, reached = 0.0, -math.inf
        for start, stop in sorted(self._spans):
            covered += max(0.0, min(stop, until) - max(start, reached))
            reached = max(reached, stop)
        return covered

    def total_s(self) -> float:
        """Seconds of all stretches, whether they overlap or not."""
        return sum((stop - start for start, stop in self._spans), 0.0)
