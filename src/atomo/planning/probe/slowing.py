"""Delay of the passes by encoding beside them, where both share cores and caches."""

import statistics
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch
from torch import Generator

from atomo.codecs import make_codec
from atomo.exchange.engine.stages import one_thread
from atomo.planning.probe.pass_profile import DryRun
from atomo.planning.probe.timer import SynchronizedTimer

__all__ = ["measure_slowing"]


def measure_slowing(
    dry_run: DryRun, timer: SynchronizedTimer, device: torch.device, times: int
) -> float:
    """Measures the seconds by which a second of encoding delays the passes beside it, 0..1.

    Passes are timed alone, and beside a thread that encodes again and again. All ranks encode at
    the same time.

    Args:
        dry_run: this rank's steps, after some warm-up steps.
        timer: the ranks.
        device: of the computation.
        times: number of timed passes, alone and beside encoding.
    """
    encode = encode_work(sum(bucket.size for bucket in dry_run.buckets), device)

    def compute() -> None:
        for step in range(1, times + 1):
            if dry_run.computes:
                dry_run.run(step, lambda bucket, flat: None)

    def encode_often() -> None:
        for _ in range(times):
            encode()

    encode()
    alone_s, encode_s = timer.slowest_s(compute), timer.slowest_s(encode_often) / times
    with run_repeatedly(encode) as count:
        beside_s = timer.slowest_s(compute)
    counts = timer.gather([float(count())], "encodings")
    encoded_s = encode_s * statistics.fmean(count for (count,) in counts)
    return min(1.0, max(0.0, (beside_s - alone_s) / max(encoded_s, encode_s)))


def encode_work(entries: int, device: torch.device) -> Callable[[], object]:
    """Returns a function that encodes `entries` values once."""
    values = torch.randn(entries, generator=Generator().manual_seed(1)).to(device)
    codec = make_codec("efsignsgd")
    return lambda: codec.encode(values, Generator(device).manual_seed(1))


@contextmanager
def run_repeatedly(work: Callable[[], object]) -> Iterator[Callable[[], int]]:
    """Runs work again and again beside the block, in a thread of its own.

    Yields:
        A function that returns how often the work was done.
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
