"""Measures MPI over the links from the master to each other host; mpirun starts one rank per host.

Prints a line of JSON per link: the rank, microseconds of a short message, Gbit/s of long messages,
and the part of the bytes that the kernel's network devices have seen: the rest bypasses TCP.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

SHORT, LONG = 8, 4 << 20  # bytes
ROUNDS = 50
ENOUGH_S = 0.3  # of long messages
MOST = 64


def received() -> int:
    """Returns the bytes that the network devices have received, without the loopback's."""
    lines = Path("/proc/net/dev").read_text().splitlines()[2:]
    pairs = [line.split(":", 1) for line in lines]
    return sum(int(words.split()[0]) for name, words in pairs if name.strip() != "lo")


def ask(world: Any, rank: int) -> None:
    """Runs the master's side of a link."""
    short, long, answer = bytearray(SHORT), bytearray(LONG), bytearray(1)
    for buffer in (short, long):  # the first of a kind opens connections
        world.Send(buffer, rank)
        world.Recv(answer, rank)
    begin = time.perf_counter()
    for _ in range(ROUNDS):
        world.Send(short, rank)
        world.Recv(answer, rank)
    latency_s = (time.perf_counter() - begin) / ROUNDS / 2
    begin, sent = time.perf_counter(), 0
    while sent < MOST and (not sent or time.perf_counter() - begin < ENOUGH_S):
        world.Send(long, rank)
        world.Recv(answer, rank)
        sent += 1
    seconds = time.perf_counter() - begin
    world.Send(bytearray(0), rank)
    reply = bytearray(8)
    world.Recv(reply, rank)
    seen = int.from_bytes(reply, "big")
    record = {"rank": rank, "us": latency_s * 1e6, "gbit_s": sent * LONG * 8 / seconds / 1e9,
              "kernel": min(1.0, seen / ((sent + 1) * LONG))}  # fmt: skip
    sys.stdout.write(json.dumps(record) + "\n")
    sys.stdout.flush()


def answer(world: Any, status: Any) -> None:
    """Runs the other side, until an empty message arrives."""
    buffer, before = bytearray(LONG), received()
    while True:
        world.Recv(buffer, 0, status=status)
        if not status.Get_count():
            break
        world.Send(bytearray(1), 0)
    world.Send(bytearray((received() - before).to_bytes(8, "big")), 0)


def main() -> None:
    from mpi4py import MPI  # the import initializes MPI

    world = MPI.COMM_WORLD
    if world.rank:
        answer(world, MPI.Status())
    else:
        for rank in range(1, world.size):
            ask(world, rank)


if __name__ == "__main__":
    main()
