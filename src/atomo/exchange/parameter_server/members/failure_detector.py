"""Detection of hung workers by their messages, CPU time and usual gradient times.

The master waits at most `timeout_s` for a worker. It waits only `silence_limit_s` for a worker
without a sign of life: no message arrives, and its process, if on the master's host, uses no CPU
time. A slow, starved or swapping worker uses some CPU time, and a worker that waits for another
polls for messages: neither counts as hung before `timeout_s`.

    silence_limit_s = min(timeout_s, max(3, timeout_s / 20, 20 x the longest mean of a worker))

The mean is an exponential moving average of one worker's gradient times, from command to report.
Only `timeout_s` holds before a worker has completed `MIN_GRADIENTS` gradients, and where its CPU
time is unknown. If the master itself was suspended, for example with its host, the silences start
again at 0. `Members` kills no worker if all seem to be hung: the fault is then more likely on the
master's side.
"""

import statistics
import time
from collections.abc import Callable, Iterable
from typing import Final, final

__all__ = ["FailureDetector"]

# All values are chosen by hand; none comes from a measurement.
MEAN_FACTOR: Final = 20.0
"""Limit, in mean gradient times. Higher: a hung worker delays its step for longer. Lower: a live
worker that waits for a disk is killed if steps are long."""
MIN_SILENCE_S: Final = 3.0
"""Lower bound of the limit, seconds: on a loaded host a process can wait that long for a core."""
TIMEOUT_SHARE: Final = 1 / 20
"""Lower bound of the limit, as a share of the timeout. It decides if steps are short. Higher: a
hung worker delays its step for longer. Lower: a long timeout for a slow host extends the limit only
a little."""
CHECKS_PER_LIMIT: Final = 8
"""Checks of the CPU time within the limit. A hung worker is detected up to one interval late; each
check reads the CPU time of all workers that owe a gradient."""
MIN_GRADIENTS: Final = 3
"""Gradients of a worker before it can count as hung; the first may compile kernels."""
EMA_WEIGHT: Final = 0.2
"""Weight of the latest gradient in the mean: about the last five count. Higher: one slow gradient
changes the limit. Lower: the limit grows later when steps become longer, as after a loss."""


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
            timeout_s: longest wait for a worker.
            cpu_time_s: returns the CPU time that a worker used so far; None if unknown.
            clock: in seconds.
        """
        self._timeout_s, self._cpu_time_s, self._clock = timeout_s, cpu_time_s, clock
        self._started: dict[int, float] = {}
        self._last_contact: dict[int, float] = {}
        self._means: dict[int, float] = {}
        self._count: dict[int, int] = {}
        self._last_cpu_s: dict[int, float | None] = {}  # at the last check
        self._last_progress: dict[int, float] = {}  # time at which the CPU time last grew
        self._last_check = clock()

    @property
    def silence_limit_s(self) -> float:
        """Seconds without a sign of life after which a worker is hung."""
        longest = max(self._means.values(), default=self._timeout_s)
        silence_limit_s = max(MIN_SILENCE_S, TIMEOUT_SHARE * self._timeout_s, MEAN_FACTOR * longest)
        return min(self._timeout_s, silence_limit_s)

    @property
    def interval_s(self) -> float:
        """Seconds between two checks."""
        return self.silence_limit_s / CHECKS_PER_LIMIT

    def restart_timeout(self, worker: int) -> None:
        """Restarts the timeout of a worker: a frame was sent to it."""
        self._last_contact[worker] = self._clock()

    def start_gradient(self, worker: int) -> None:
        """Records that a worker starts a gradient."""
        self._started[worker] = self._clock()

    def record_message(self, worker: int) -> None:
        """Records that a message of a worker arrived."""
        self._last_contact[worker] = self._clock()

    def complete_gradient(self, worker: int) -> None:
        """Records that a worker's gradient is complete, and updates the worker's mean."""
        duration_s = self._clock() - self._started.pop(worker)
        self._count[worker] = self._count.get(worker, 0) + 1
        if self._count[worker] > 1:  # the first may compile kernels
            past = self._means.get(worker, duration_s)
            self._means[worker] = past + EMA_WEIGHT * (duration_s - past)

    def remove(self, worker: int) -> None:
        """Removes a dead worker."""
        for record in (
            self._started, self._last_contact, self._means, self._count, self._last_cpu_s,
            self._last_progress,
        ):  # fmt: skip
            record.pop(worker, None)

    def next_check_s(self, pending: Iterable[int]) -> float:
        """Returns the seconds until the next check of workers that owe a frame."""
        now = self._clock()
        remaining_s = [
            self._last_contact.setdefault(w, now) + self._timeout_s - now for w in pending
        ]
        return max(0.0, min([self.interval_s, *remaining_s]))

    def overdue(self, pending: Iterable[int], share: float = 1.0) -> list[int]:
        """Returns the workers that owe a frame and were silent for a `share` of the timeout."""
        now = self._clock()
        return [
            w for w in pending if now - self._last_contact.get(w, now) >= share * self._timeout_s
        ]

    def hung(self, pending: Iterable[int]) -> list[int]:
        """Returns the hung workers among those that owe a frame; empty between two checks."""
        now = self._clock()
        elapsed_s = now - self._last_check
        if elapsed_s < self.interval_s:
            return []
        self._last_check, was_suspended = now, elapsed_s > 2 * self.interval_s
        alive = {w: self._is_alive(w, now, was_suspended) for w in pending}
        return [w for w in alive if not alive[w] and self._is_silent(w, now)]

    def _is_alive(self, worker: int, now: float, was_suspended: bool) -> bool:
        """True if the process used CPU time since the last check, or if that is unknown."""
        cpu_s, last_cpu_s = self._cpu_time_s(worker), self._last_cpu_s.get(worker)
        self._last_cpu_s[worker] = cpu_s
        alive = cpu_s is None or cpu_s != last_cpu_s or was_suspended
        if alive:
            self._last_progress[worker] = now
        return alive

    def _is_silent(self, worker: int, now: float) -> bool:
        has_mean = self._count.get(worker, 0) >= MIN_GRADIENTS
        last_sign = max(self._last_contact.get(worker, now), self._last_progress.get(worker, now))
        return has_mean and now - last_sign >= self.silence_limit_s

    def slowest(self) -> tuple[int, float]:
        """Returns the worker with the longest mean, and its ratio to the median of all means; (0,
        1.0) if fewer than two means are known.
        """
        if len(self._means) < 2:
            return 0, 1.0
        worker = max(self._means, key=lambda rank: self._means[rank])
        return worker, self._means[worker] / statistics.median(self._means.values())
