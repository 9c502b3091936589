"""The training without faults, for comparison with the training with faults."""

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import final

from parts.chaos.job import Training

__all__ = ["INTERRUPTED", "Calm", "ended", "learnt", "waited"]

INTERRUPTED = 130
WARM = 20  # steps of compilation and cold caches
POLL_S = 0.02


@final
class Calm:
    """Steps without faults: before and after the faults, or at the same time on another cluster.

    At the same time, both trainings share the machine: each has about half of the cores. Before and
    after, each training has all cores, and the difference of the two rates shows other load on the
    machine.
    """

    def __init__(self, start: Callable[[], Training], minutes: float, *, beside: bool) -> None:
        """Prepares the comparison; starts no training.

        Args:
            start: starts or resumes the training.
            minutes: duration of each of the two stretches.
            beside: True to run at the same time as the faults, not before and after.
        """
        self._start, self._minutes, self._beside = start, minutes, beside
        self._training: Training | None = None
        self.rates: list[float] = []
        """Steps a second of each stretch."""
        self.folder = Path()

    def begin(self, limit_s: float) -> list[str]:
        """Starts the comparison before the faults; returns the problems."""
        return self._begin(limit_s) if self._beside else self._stretch(limit_s, 0)

    def finish(self, steps: int, limit_s: float) -> list[str]:
        """Runs the stretch after the faults, or ends the parallel training, after at least `steps`
        steps; returns the problems.
        """
        if not self._beside:
            return self._stretch(limit_s, steps)
        assert self._training is not None
        wrong = learnt(self._training, steps, limit_s)
        return wrong + ended("the training without faults", self._training, limit_s)

    def steps_in(self, parts: Sequence[tuple[float, float]]) -> float:
        """Returns the steps without faults in these intervals."""
        if self._beside and self._training is not None:
            return sum(self._training.useful(*part) for part in parts)
        rate = statistics.fmean(self.rates) if self.rates else 0.0
        return rate * sum(to - since for since, to in parts)

    def _begin(self, limit_s: float) -> list[str]:
        training = self._training = self._start()
        self.folder = training.folder
        return waited(lambda: len(training.steps) > WARM, training, limit_s)

    def _stretch(self, limit_s: float, steps: int) -> list[str]:
        wrong = self._begin(limit_s)
        training = self._training
        assert training is not None
        since, first = time.monotonic(), training.furthest()
        while not wrong and time.monotonic() < since + 60 * self._minutes and training.code is None:
            time.sleep(POLL_S)
        self.rates.append((training.furthest() - first) / (time.monotonic() - since))
        wrong = wrong or learnt(training, steps, limit_s)
        return wrong + ended("the training without faults", training, limit_s)


def waited(condition: Callable[[], bool], training: Training, limit_s: float) -> list[str]:
    """Waits for a condition; returns a problem if the condition stays false."""
    end = time.monotonic() + limit_s
    while not condition():
        if training.code is not None:
            return [f"the training ended by itself with code {training.code}"]
        if time.monotonic() > end:
            return [f"the training hung: no progress for {limit_s:g} s"]
        time.sleep(POLL_S)
    return []


def learnt(training: Training, steps: int, limit_s: float) -> list[str]:
    """Waits for a number of steps; returns a problem if the training makes no progress."""
    while (count := training.furthest()) < steps:
        if wrong := waited(partial(went_on, training, count), training, limit_s):
            return wrong
    return []


def went_on(training: Training, count: int) -> bool:
    return training.furthest() > count


def ended(name: str, training: Training, limit_s: float) -> list[str]:
    """Interrupts a training and waits for its end; returns the problems."""
    code = training.end(limit_s)
    if code is None:
        return [f"{name} did not end within {limit_s:g} s of its interrupt"]
    if code != INTERRUPTED:
        return [f"{name} ended with code {code}: {' / '.join(training.output[-5:])}"]
    return []
