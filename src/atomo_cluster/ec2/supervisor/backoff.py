"""Times of requests that AWS may refuse for hours: each pause is longer, up to a bound."""

from datetime import datetime, timedelta
from random import Random
from typing import Final, final

__all__ = ["LONGEST", "SHORTEST", "Backoff"]

SHORTEST: Final = timedelta(seconds=30)
LONGEST: Final = timedelta(minutes=10)
MOST_DOUBLINGS: Final = 16


@final
class Backoff:
    """Exponential back-off with jitter, by the clock of its caller.

    The jitter, from a seeded generator, takes up to half off each pause: clusters that lost hosts
    at the same moment do not ask at the same moment.
    """

    def __init__(self, seed: str, failures: int = 0) -> None:
        self._random = Random(seed)
        self.failures = failures  # since the last success
        self.due: datetime | None = None  # time of the next request; None: now

    def fail(self, now: datetime) -> datetime:
        """Counts a failure and returns the time of the next request."""
        pause = min(LONGEST, SHORTEST * 2 ** min(self.failures, MOST_DOUBLINGS))
        self.failures += 1
        self.due = now + pause * self._random.uniform(0.5, 1.0)
        return self.due

    def succeed(self) -> None:
        """Forgets the failures."""
        self.failures, self.due = 0, None
