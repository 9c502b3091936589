"""Collectives over point-to-point messages, compared with MPI's collectives.

    mpirun -n 4 python benchmarks/collectives.py

The difference is the cost of deadlines, and of errors that name a rank. There is one row for each
size: medians of several rounds in which both take turns, in milliseconds.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from mpi4py import MPI

from atomo.codecs import make_codec
from atomo.core.process.allocator import keep_freed_memory
from atomo.exchange import Direct
from atomo.exchange.collectives.collective import Addend
from atomo.transports.mpi import connect
from atomo.wire import Bytes

GATHERED = (10_000, 100_000, 1_000_000)  # bytes of each rank's frame
SUMMED = (650_000, 11_170_000)  # entries, of LeNet's gradient and of ResNet18's
TIMEOUT_S = 600.0


def main() -> None:
    """Runs one rank; rank 0 prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=15)
    times = parser.parse_args().times
    torch.set_num_threads(1)
    keep_freed_memory()
    direct, world = Direct(connect(), TIMEOUT_S), MPI.COMM_WORLD
    say(world, f"| {world.size} ranks | from rank to rank, ms | MPI's own, ms |\n|---|---|---|")
    for size in GATHERED:
        frame = np.random.default_rng(world.rank).integers(0, 256, size + world.rank, np.uint8)
        calls = [partial(gather, direct, frame), partial(gather_mpi, world, frame)]
        row(world, f"gather {size / 1000:,.0f} kB", calls, times)
    for size in SUMMED:
        values = torch.zeros(size)  # zeros do not grow in repeated sums
        addends = [Addend(values, make_codec("sgd"))]
        calls = [
            partial(direct.sum, addends, "x"),
            partial(world.Allreduce, MPI.IN_PLACE, values.numpy()),
        ]
        row(world, f"sum {4 * size / 1e6:,.1f} MB", calls, times)


def gather(collective: Direct, frame: Bytes) -> None:
    """Gathers over point-to-point messages."""
    for _ in collective.gather(frame, "x"):
        pass


def gather_mpi(world: MPI.Intracomm, frame: Bytes) -> None:
    """Gathers frames of unequal length with MPI: first the lengths, then the frames."""
    lengths = np.empty(world.size, np.int64)
    world.Allgather(np.array([frame.size]), lengths)
    world.Allgatherv(frame, [np.empty(lengths.sum(), np.uint8), lengths.tolist()])


def row(world: MPI.Intracomm, name: str, calls: Sequence[Callable[[], object]], times: int) -> None:
    """Times the calls in turn, and prints the medians."""
    times_of_calls: list[list[float]] = [[] for _ in calls]
    for _ in range(times):
        for call, seconds in zip(calls, times_of_calls, strict=True):
            world.Barrier()
            started = time.perf_counter()
            call()
            world.Barrier()  # until the last rank has finished
            seconds.append(time.perf_counter() - started)
    medians = (1e3 * statistics.median(seconds) for seconds in times_of_calls)
    say(world, f"| {name} | " + " | ".join(f"{ms:.2f}" for ms in medians) + " |")


def say(world: MPI.Intracomm, text: str) -> None:
    """Prints a line on rank 0."""
    if world.rank == 0:
        print(text, flush=True)


if __name__ == "__main__":
    main()
