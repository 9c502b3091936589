"""Collectives from rank to rank, compared with MPI's own: the cost of deadlines and of errors that
name a rank.

    mpirun -n 4 python benchmarks/collectives.py

One row a size: medians of some rounds, in which both take turns; milliseconds.
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
    """Is one rank; rank 0 prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=15)
    times = parser.parse_args().times
    torch.set_num_threads(1)
    keep_freed_memory()
    ours, world = Direct(connect(), TIMEOUT_S), MPI.COMM_WORLD
    say(world, f"| {world.size} ranks | from rank to rank, ms | MPI's own, ms |\n|---|---|---|")
    for size in GATHERED:
        mine = np.random.default_rng(world.rank).integers(0, 256, size + world.rank, np.uint8)
        ways = [partial(gather, ours, mine), partial(gather_mpi, world, mine)]
        row(world, f"gather {size / 1000:,.0f} kB", ways, times)
    for size in SUMMED:
        values = torch.zeros(size)  # adding them up does not make them grow
        addends = [Addend(values, make_codec("sgd"))]
        ways = [
            partial(ours.sum, addends, "x"),
            partial(world.Allreduce, MPI.IN_PLACE, values.numpy()),
        ]
        row(world, f"sum {4 * size / 1e6:,.1f} MB", ways, times)


def gather(collective: Direct, mine: Bytes) -> None:
    """Ours."""
    for _ in collective.gather(mine, "x"):
        pass


def gather_mpi(world: MPI.Intracomm, mine: Bytes) -> None:
    """MPI's gather of frames of unequal length: their lengths go first."""
    lengths = np.empty(world.size, np.int64)
    world.Allgather(np.array([mine.size]), lengths)
    world.Allgatherv(mine, [np.empty(lengths.sum(), np.uint8), lengths.tolist()])


def row(world: MPI.Intracomm, name: str, ways: Sequence[Callable[[], object]], times: int) -> None:
    """Times ways in turn, and prints the medians."""
    taken: list[list[float]] = [[] for _ in ways]
    for _ in range(times):
        for way, seconds in zip(ways, taken, strict=True):
            world.Barrier()
            started = time.perf_counter()
            way()
            world.Barrier()  # until the last rank has it
            seconds.append(time.perf_counter() - started)
    medians = (1e3 * statistics.median(seconds) for seconds in taken)
    say(world, f"| {name} | " + " | ".join(f"{ms:.2f}" for ms in medians) + " |")


def say(world: MPI.Intracomm, text: str) -> None:
    """Prints once."""
    if world.rank == 0:
        print(text, flush=True)


if __name__ == "__main__":
    main()
