"""How much encoding delays the passes that it runs beside, where they share cores and caches."""

import statistics
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch
from torch import Generator

from atomo.codecs import make_codec
from atomo.communicators.threads import one_thread
from atomo.probing.passes import Trial
from atomo.probing.together import Together

__all__ = ["measure_slowing"]


def measure_slowing(trial: Trial, together: Together, device: torch.device, times: int) -> float:
    """Seconds by which a second of encoding delays the passes that it runs beside, 0..1.

    Passes are timed alone, and beside a thread that encodes again and again; what encoding takes is
    timed on all ranks at once.

    Args:
        trial: this rank's steps, some of which were taken.
        together: the ranks.
        device: where it computes.
        times: how many passes are timed, both ways.
    """
    encode = encoding(sum(bucket.size for bucket in trial.buckets), device)

    def compute() -> None:
        for step in range(1, times + 1):
            if trial.computes:
                trial.run(step, lambda bucket, flat: None)

    def encode_often() -> None:
        for _ in range(times):
            encode()

    encode()
    alone_s, one_s = together.slowest_s(compute), together.slowest_s(encode_often) / times
    with repeating(encode) as count:
        beside_s = together.slowest_s(compute)
    counts = together.share([float(count())], "encodings")
    encoded_s = one_s * statistics.fmean(one for (one,) in counts)
    return min(1.0, max(0.0, (beside_s - alone_s) / max(encoded_s, one_s)))


def encoding(entries: int, device: torch.device) -> Callable[[], object]:
    """Encodes so many entries once."""
    values = torch.randn(entries, generator=Generator().manual_seed(1)).to(device)
    codec = make_codec("efsignsgd")
    return lambda: codec.encode(values, Generator(device).manual_seed(1))


@contextmanager
def repeating(work: Callable[[], object]) -> Iterator[Callable[[], int]]:
    """Does work again and again beside the block, in a thread of its own.

    Yields:
        How often it was done so far.
    """
    ended, done = threading.Event(), [0]

    def run() -> None:
        while not ended.is_set():
            work()
            done[0] += 1

    with ThreadPoolExecutor(1, "probe", one_thread) as thread:
        running = thread.submit(run)
        try:
            yield lambda: done[0]
        finally:
            ended.set()
        running.result()
