"""The training without faults that the other is held against."""

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import final

from chaos_job import Training

__all__ = ["INTERRUPTED", "Calm", "ended", "learnt", "waited"]

INTERRUPTED = 130
WARM = 20  # steps that compile, and fill caches
POLL_S = 0.02


@final
class Calm:
    """Steps without faults: before and after the faults, or at the same time on another cluster.

    Beside them it has the same machine at the same time, and half of its cores, or more where the
    other has fewer processes. Before and after, both have all cores, and what the machine does
    meanwhile is seen in the difference of the two rates.
    """

    def __init__(self, start: Callable[[], Training], minutes: float, *, beside: bool) -> None:
        """Nothing runs yet.

        Args:
            start: begins the training, or goes on with it.
            minutes: of each of the two stretches.
            beside: whether it runs beside the faults, and not before and after.
        """
        self._start, self._minutes, self._beside = start, minutes, beside
        self._training: Training | None = None
        self.rates: list[float] = []
        """Steps a second of each stretch."""
        self.folder = Path()

    def begin(self, limit_s: float) -> list[str]:
        """Runs the stretch before the faults; returns the problems."""
        return self._begin(limit_s) if self._beside else self._stretch(limit_s, 0)

    def finish(self, steps: int, limit_s: float) -> list[str]:
        """Returns the stretch after them, and as many steps as it takes to have learnt."""
        if not self._beside:
            return self._stretch(limit_s, steps)
        assert self._training is not None
        wrong = learnt(self._training, steps, limit_s)
        return wrong + ended("the training without faults", self._training, limit_s)

    def steps_in(self, parts: Sequence[tuple[float, float]]) -> float:
        """Counts the steps that it takes in these seconds."""
        if self._beside and self._training is not None:
            return sum(self._training.useful(*part) for part in parts)
        rate = statistics.fmean(self.rates) if self.rates else 0.0
        return rate * sum(to - since for since, to in parts)

    def _begin(self, limit_s: float) -> list[str]:
        one = self._training = self._start()
        self.folder = one.folder
        return waited(lambda: len(one.steps) > WARM, one, limit_s)

    def _stretch(self, limit_s: float, steps: int) -> list[str]:
        wrong = self._begin(limit_s)
        one = self._training
        assert one is not None
        since, first = time.monotonic(), one.furthest()
        while not wrong and time.monotonic() < since + 60 * self._minutes and one.code is None:
            time.sleep(POLL_S)
        self.rates.append((one.furthest() - first) / (time.monotonic() - since))
        wrong = wrong or learnt(one, steps, limit_s)
        return wrong + ended("the training without faults", one, limit_s)


def waited(condition: Callable[[], bool], training: Training, limit_s: float) -> list[str]:
    """Waits for a condition; returns a problem if it does not come true."""
    end = time.monotonic() + limit_s
    while not condition():
        if training.code is not None:
            return [f"the training ended by itself with code {training.code}"]
        if time.monotonic() > end:
            return [f"the training hung: no progress for {limit_s:g} s"]
        time.sleep(POLL_S)
    return []


def learnt(training: Training, steps: int, limit_s: float) -> list[str]:
    """Waits until a number of steps is taken; returns a problem if no more come."""
    while (count := training.furthest()) < steps:
        if wrong := waited(partial(went_on, training, count), training, limit_s):
            return wrong
    return []


def went_on(training: Training, count: int) -> bool:
    return training.furthest() > count


def ended(name: str, training: Training, limit_s: float) -> list[str]:
    """Ends a training; returns the problems."""
    code = training.end(limit_s)
    if code is None:
        return [f"{name} did not end within {limit_s:g} s of its interrupt"]
    if code != INTERRUPTED:
        return [f"{name} ended with code {code}: {' / '.join(training.told[-5:])}"]
    return []
