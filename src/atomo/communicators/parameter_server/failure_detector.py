"""How long gradients take each worker, and so from when on one that shows no life is hung.

The rule. The master waits for a worker at most `timeout_s`. It waits less, `soon_s`, for one that
shows no sign of life at all: no message of it comes, and its process, where it is on the master's
host, uses no processor time. A worker that is slow, starved or swapping computes a little, and one
that waits for another looks for messages: neither is taken for hung, however long it takes.

    soon_s = min(timeout_s, max(3, timeout_s / 20, 20 x the longest mean of a worker))

A mean is over gradients of one worker, from order to report, later ones weighing more. Before a
worker has completed `LEARNT` of them, and where nobody knows its processor time, there is only
`timeout_s`. Where the master itself was held up, as by a host that was asleep, it begins to count
anew. Nobody is taken for hung where all workers seem to be.
"""

import statistics
import time
from collections.abc import Callable, Iterable
from typing import Final, final

__all__ = ["FailureDetector"]

MEAN_FACTOR: Final = 20.0  # higher => a hung worker is noticed later
MIN_SILENCE_S: Final = 3.0  # on a loaded host a process may wait so long for a processor
TIMEOUT_SHARE: Final = 1 / 20  # of the timeout, below which nobody is judged either
LOOKS_PER_LIMIT: Final = 8  # at the processor time, within the time to wait
MIN_GRADIENTS: Final = 3  # gradients, of which the first may have compiled kernels
EMA_WEIGHT: Final = 0.2  # of the latest gradient in the mean


@final
class FailureDetector:
    """The times of all workers."""

    def __init__(
        self,
        timeout_s: float,
        used_s: Callable[[int], float | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing is known yet.

        Args:
            timeout_s: the longest wait for a worker.
            used_s: processor time that a worker used so far; None: not known.
            clock: in seconds.
        """
        self._timeout_s, self._used_s, self._clock = timeout_s, used_s, clock
        self._given: dict[int, float] = {}
        self._heard: dict[int, float] = {}
        self._means: dict[int, float] = {}
        self._count: dict[int, int] = {}
        self._seen: dict[int, float | None] = {}  # processor time, at the last look
        self._moved: dict[int, float] = {}  # when that was seen to grow
        self._looked = clock()

    @property
    def silence_limit_s(self) -> float:
        """How long a worker may show no sign of life."""
        longest = max(self._means.values(), default=self._timeout_s)
        silence_limit_s = max(MIN_SILENCE_S, TIMEOUT_SHARE * self._timeout_s, MEAN_FACTOR * longest)
        return min(self._timeout_s, silence_limit_s)

    @property
    def interval_s(self) -> float:
        """Between two looks."""
        return self.silence_limit_s / LOOKS_PER_LIMIT

    def expect(self, worker: int) -> None:
        """It was sent something, and has the whole time to answer."""
        self._heard[worker] = self._clock()

    def give(self, worker: int) -> None:
        """It begins a gradient."""
        self._given[worker] = self._clock()

    def hear(self, worker: int) -> None:
        """A message of it came."""
        self._heard[worker] = self._clock()

    def complete(self, worker: int) -> None:
        """Its gradient is whole."""
        took_s = self._clock() - self._given.pop(worker)
        self._count[worker] = self._count.get(worker, 0) + 1
        if self._count[worker] > 1:  # the first stands for no other
            past = self._means.get(worker, took_s)
            self._means[worker] = past + EMA_WEIGHT * (took_s - past)

    def lose(self, worker: int) -> None:
        """It is gone."""
        for record in (self._given, self._heard, self._means, self._count, self._seen, self._moved):
            record.pop(worker, None)

    def next_look_s(self, owing: Iterable[int]) -> float:
        """How long to wait before the next look at those that owe something."""
        now = self._clock()
        left = [self._heard.setdefault(w, now) + self._timeout_s - now for w in owing]
        return max(0.0, min([self.interval_s, *left]))

    def overdue(self, owing: Iterable[int], part: float = 1.0) -> list[int]:
        """Of those that owe something, who was not heard of for that part of the whole time."""
        now = self._clock()
        return [w for w in owing if now - self._heard.get(w, now) >= part * self._timeout_s]

    def hung(self, owing: Iterable[int]) -> list[int]:
        """Who shows no sign of life, of those that owe something; looks only every so often."""
        now = self._clock()
        since = now - self._looked
        if since < self.interval_s:
            return []
        self._looked, held_up = now, since > 2 * self.interval_s
        lives = {w: self._lives(w, now, held_up) for w in owing}
        return [w for w in lives if not lives[w] and self._is_judged(w, now)]

    def _lives(self, worker: int, now: float, held_up: bool) -> bool:
        """Whether its process did something since the last look, or nobody can tell."""
        used, before = self._used_s(worker), self._seen.get(worker)
        self._seen[worker] = used
        lives = used is None or used != before or held_up
        if lives:
            self._moved[worker] = now
        return lives

    def _is_judged(self, worker: int, now: float) -> bool:
        known = self._count.get(worker, 0) >= MIN_GRADIENTS
        last = max(self._heard.get(worker, now), self._moved.get(worker, now))
        return known and now - last >= self.silence_limit_s

    def slowest(self) -> tuple[int, float]:
        """The worker whose gradients take longest, and how many times the median of all; 0: none
        is known.
        """
        if len(self._means) < 2:
            return 0, 1.0
        worker = max(self._means, key=lambda one: self._means[one])
        return worker, self._means[worker] / statistics.median(self._means.values())
