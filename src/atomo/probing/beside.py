"""What encoding and the backward pass cost each other where they share cores and caches."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median
from typing import Final, final

__all__ = ["Beside", "measure_beside"]

MOST: Final = 3.0  # times: one core for both doubles it; what is far above was somebody else's


@final
@dataclass(frozen=True)
class Beside:
    """Both, beside each other."""

    stretch: float = 1.0
    """How many times as long as alone encoding takes, from 1."""
    slowing: float = 0.0
    """Seconds by which a second of encoding delays the backward pass, 0..1."""


def measure_beside(
    backward: Callable[[], float],
    encode: Callable[[], object],
    begin: Callable[[], None] = lambda: None,
    repetitions: int = 2,
) -> Beside:
    """Encodes again and again in a thread while backward passes run.

    Args:
        backward: runs a pass, and returns the seconds of its backward part.
        encode: encodes a gradient.
        begin: called in the thread that encodes, before it does.
        repetitions: of everything; the fastest backward pass counts.
    """
    with ThreadPoolExecutor(1, "probe", begin) as thread:
        thread.submit(encode).result()
        alone_s = min(thread.submit(timed, encode).result() for _ in range(repetitions))
        quiet_s = min(backward() for _ in range(repetitions))
        over = threading.Event()
        encoding = thread.submit(repeated, encode, over)
        try:
            crowded_s = min(backward() for _ in range(repetitions))
        finally:
            over.set()
        beside_s = median(encoding.result())
    slowing = (crowded_s - quiet_s) / crowded_s
    return Beside(min(max(beside_s / alone_s, 1.0), MOST), min(max(slowing, 0.0), 1.0))


def timed(work: Callable[[], object]) -> float:
    """How long it takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def repeated(work: Callable[[], object], over: threading.Event) -> list[float]:
    """How long it took each time, once at least."""
    times = [timed(work)]
    while not over.is_set():
        times.append(timed(work))
    return times
