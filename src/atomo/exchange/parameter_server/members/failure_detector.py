"""Detection of hung workers by their messages, CPU time and usual gradient times.

The master waits at most `timeout_s` for a worker. It waits only `silence_limit_s` for a worker
without a sign of life: no message arrives, and its process, if on the master's host, uses no CPU
time. A slow, starved or swapping worker uses some CPU time, and a worker that waits for another
polls for messages: neither counts as hung before `timeout_s`.

    silence_limit_s = min(timeout_s, max(3, timeout_s / 20, 20 x the longest mean of a worker))

The mean is an exponential moving average of one worker's gradient times, from command to report.
Only `timeout_s` holds before a worker has completed `MIN_GRADIENTS` gradients, and where its CPU
time is unknown. If the master itself was suspended, for example with its host, the detector starts
to count again. `Members` kills no worker if all seem to be hung: then the fault is more likely the
master's own.
"""

import statistics
import time
from collections.abc import Callable, Iterable
from typing import Final, final

__all__ = ["FailureDetector"]

# All values are chosen by hand; none comes from a measurement.
MEAN_FACTOR: Final = 20.0
"""Limit, in mean gradient times. Higher: a hung worker holds up its step for longer. Lower: a live
worker that waits for a disk is killed where steps are long."""
MIN_SILENCE_S: Final = 3.0
"""Lower bound of the limit, seconds: on a loaded host a process may wait that long for a core."""
TIMEOUT_SHARE: Final = 1 / 20
"""Lower bound of the limit, as a share of the timeout. It decides where steps are short. Higher: a
hung worker holds up its step for longer. Lower: a user who gives a long timeout for a slow host
gets little more patience there."""
LOOKS_PER_LIMIT: Final = 8
"""Looks at the CPU time within the limit. A hung worker is noticed up to one interval late; each
look reads the CPU time of all workers that owe a gradient."""
MIN_GRADIENTS: Final = 3
"""Gradients of a worker before it can be hung; the first may compile kernels."""
EMA_WEIGHT: Final = 0.2
"""Weight of the latest gradient in the mean: about the last five count. Higher: one slow gradient
moves the limit. Lower: the limit follows later when steps become longer, as after a loss."""


@final
class FailureDetector:
    """Times of the gradients and of the last signs of life, by worker."""

    def __init__(
        self,
        timeout_s: float,
        cpu_time_s: Callable[[int], float | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Starts without known workers.

        Args:
            timeout_s: the longest wait for a worker.
            cpu_time_s: CPU time that a worker used so far; None if unknown.
            clock: in seconds.
        """
        self._timeout_s, self._cpu_time_s, self._clock = timeout_s, cpu_time_s, clock
        self._started: dict[int, float] = {}
        self._last_contact: dict[int, float] = {}
        self._means: dict[int, float] = {}
        self._count: dict[int, int] = {}
        self._last_cpu_s: dict[int, float | None] = {}  # at the last look
        self._last_progress: dict[int, float] = {}  # when the CPU time was seen to grow
        self._last_look = clock()

    @property
    def silence_limit_s(self) -> float:
        """Seconds without a sign of life after which a worker is hung."""
        longest = max(self._means.values(), default=self._timeout_s)
        silence_limit_s = max(MIN_SILENCE_S, TIMEOUT_SHARE * self._timeout_s, MEAN_FACTOR * longest)
        return min(self._timeout_s, silence_limit_s)

    @property
    def interval_s(self) -> float:
        """Seconds between two looks."""
        return self.silence_limit_s / LOOKS_PER_LIMIT

    def restart_timeout(self, worker: int) -> None:
        """Gives a worker the whole time again: a frame was sent to it."""
        self._last_contact[worker] = self._clock()

    def start_gradient(self, worker: int) -> None:
        """Notes that a worker starts a gradient."""
        self._started[worker] = self._clock()

    def record_message(self, worker: int) -> None:
        """Notes that a message of a worker arrived."""
        self._last_contact[worker] = self._clock()

    def complete_gradient(self, worker: int) -> None:
        """Notes that a worker's gradient is complete, and updates its mean."""
        took_s = self._clock() - self._started.pop(worker)
        self._count[worker] = self._count.get(worker, 0) + 1
        if self._count[worker] > 1:  # the first may compile, and is not typical
            past = self._means.get(worker, took_s)
            self._means[worker] = past + EMA_WEIGHT * (took_s - past)

    def remove(self, worker: int) -> None:
        """Removes a dead worker."""
        for record in (
            self._started, self._last_contact, self._means, self._count, self._last_cpu_s,
            self._last_progress,
        ):  # fmt: skip
            record.pop(worker, None)

    def next_look_s(self, owing: Iterable[int]) -> float:
        """Returns the seconds until the next look at workers that owe a frame."""
        now = self._clock()
        left = [self._last_contact.setdefault(w, now) + self._timeout_s - now for w in owing]
        return max(0.0, min([self.interval_s, *left]))

    def overdue(self, owing: Iterable[int], part: float = 1.0) -> list[int]:
        """Returns the workers that were silent for that share of the timeout, of those that owe a
        frame.
        """
        now = self._clock()
        return [w for w in owing if now - self._last_contact.get(w, now) >= part * self._timeout_s]

    def hung(self, owing: Iterable[int]) -> list[int]:
        """Returns the hung workers among those that owe a frame; none between two looks."""
        now = self._clock()
        since = now - self._last_look
        if since < self.interval_s:
            return []
        self._last_look, held_up = now, since > 2 * self.interval_s
        alive = {w: self._is_alive(w, now, held_up) for w in owing}
        return [w for w in alive if not alive[w] and self._is_judged(w, now)]

    def _is_alive(self, worker: int, now: float, held_up: bool) -> bool:
        """True if the process used CPU time since the last look, or if that is unknown."""
        used, before = self._cpu_time_s(worker), self._last_cpu_s.get(worker)
        self._last_cpu_s[worker] = used
        alive = used is None or used != before or held_up
        if alive:
            self._last_progress[worker] = now
        return alive

    def _is_judged(self, worker: int, now: float) -> bool:
        known = self._count.get(worker, 0) >= MIN_GRADIENTS
        last = max(self._last_contact.get(worker, now), self._last_progress.get(worker, now))
        return known and now - last >= self.silence_limit_s

    def slowest(self) -> tuple[int, float]:
        """Returns the worker with the longest mean, and the ratio to the median of all means; (0,
        1.0) if fewer than two means are known.
        """
        if len(self._means) < 2:
            return 0, 1.0
        worker = max(self._means, key=lambda rank: self._means[rank])
        return worker, self._means[worker] / statistics.median(self._means.values())
