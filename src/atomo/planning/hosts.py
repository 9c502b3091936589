"""Several workers a host: dense sums inside it, and lanes of buckets between hosts.

What `communicators/hierarchical.py` does, as costs. One rank of a host, whose lane the bucket is
in, takes a dense message from each of its others, adds them up, and then is the only worker of its
host; in the end it gives them the mean. Summing counts as encoding and giving as decoding: the same
rank's cores do both.
"""

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import torch

from atomo.codecs.small import DENSE
from atomo.communicators.collective import Addend
from atomo.communicators.hosts import least_loaded
from atomo.communicators.pieces import add, packed
from atomo.fusion.flow import Flow
from atomo.planning.exchanges import Link

__all__ = ["INSIDE", "done_in_lanes", "flat_name", "measure_inside"]

INSIDE: Final = "hierarchical "  # before the name of a communicator: between hosts alone
SMALL, LARGE = 64, 1_000_000  # entries


def flat_name(communicator: str) -> str:
    """What `--comm-type` says of it."""
    return communicator.removeprefix(INSIDE)


def measure_inside(repetitions: int = 10) -> Link:
    """A dense message from a rank to another of its host, by what it takes here.

    That is packing, a copy through memory, checking and adding: no network is in it.
    """
    small_s, large_s = (taken_s(entries, repetitions) for entries in (SMALL, LARGE))
    byte_s = max(large_s - small_s, 1e-9) / (4 * (LARGE - SMALL))
    return Link(1 / byte_s, small_s)


def taken_s(entries: int, repetitions: int) -> float:
    """Seconds of a message of so many entries, the fastest of some."""
    sent, sums = (Addend(torch.zeros(entries), DENSE) for _ in range(2))
    times = []
    for _ in range(1 + repetitions):
        started = time.perf_counter()
        add(packed([sent], "a measurement").copy(), [sums], "a measurement")
        times.append(time.perf_counter() - started)
    return min(times[1:])


def done_in_lanes(flow: Flow, sizes: Sequence[int], cuts: Sequence[int], lanes: int) -> float:
    """When everything is decoded, if messages are shared out to so many ranks of each host.

    The lanes encode and decode beside each other, and share the link. Encoding in one of them
    delays all gradients, since a host's sum waits for its slowest rank.

    Args:
        flow: of one rank.
        sizes: of the tensors.
        cuts: as `Flow.done` takes them.
        lanes: ranks of a host; of one, it is what `Flow.done` says.
    """
    groups = [*pairwise((0, *cuts))]
    encoded, encoding, decoded = ([0.0] * lanes for _ in range(3))
    sending: list[tuple[float, int, float, float]] = []
    chosen = least_loaded([sum(sizes[start:stop]) for start, stop in groups], lanes)
    for lane, (start, stop) in zip(chosen, groups, strict=True):
        times = flow.group(start, stop)
        ready = flow.whole[stop - 1] + flow.slowing * max(encoding)
        encoded[lane] = max(encoded[lane], ready) + times.encode
        encoding[lane] += times.encode
        sending.append((encoded[lane], lane, times.send, times.decode))
    sent = 0.0
    for moment, lane, send, decode in sorted(sending):  # whoever is first has the link
        sent = max(sent, moment) + send
        decoded[lane] = max(decoded[lane], sent) + decode
    return max(decoded)
