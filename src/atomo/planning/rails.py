"""Model of hierarchical averaging: dense sums inside a host, and rails of buckets between hosts.

The model follows `exchange/reductions/hierarchical.py`. The rank that owns a bucket's rail receives
a dense message from each other rank of its host, adds them up, and exchanges as the only worker of
its host. In the end the rank sends the mean to the other ranks of its host. The sums count as
encoding, and sending the mean counts as decoding, since the same rank's cores do both.
"""

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import torch

from atomo.codecs.dense_fallback import DENSE
from atomo.exchange.collectives.collective import Addend
from atomo.exchange.collectives.hosts import least_loaded
from atomo.exchange.collectives.pieces import add, packed
from atomo.fusion.flow import Flow
from atomo.planning.exchanges import Link

__all__ = ["HIERARCHICAL", "flat_name", "measure_intra_host_link", "rails_done_s"]

HIERARCHICAL: Final = "hierarchical "  # before the name of a communicator: between hosts alone
SMALL, LARGE = 64, 1_000_000  # entries


def flat_name(communicator: str) -> str:
    """Returns the communicator's name as `--comm-type` has it."""
    return communicator.removeprefix(HIERARCHICAL)


def measure_intra_host_link(repetitions: int = 10) -> Link:
    """Measures the transfer of a dense message between two ranks of this host.

    The time covers packing, a copy through memory, checks and adding, without a network.
    """
    small_s, large_s = (message_s(entries, repetitions) for entries in (SMALL, LARGE))
    byte_s = max(large_s - small_s, 1e-9) / (4 * (LARGE - SMALL))
    return Link(1 / byte_s, small_s)


def message_s(entries: int, repetitions: int) -> float:
    """Returns the seconds of a message of `entries` entries, the fastest of several."""
    sent, sums = (Addend(torch.zeros(entries), DENSE) for _ in range(2))
    times = []
    for _ in range(1 + repetitions):
        started = time.perf_counter()
        add(packed([sent], "a measurement").copy(), [sums], "a measurement")
        times.append(time.perf_counter() - started)
    return min(times[1:])


def rails_done_s(flow: Flow, sizes: Sequence[int], cuts: Sequence[int], rails: int) -> float:
    """Returns the time until all messages are decoded if the ranks of a host share the messages.

    The rails encode and decode side by side, and share the link. Encoding in one rail delays all
    gradients, since a host's sum waits for its slowest rank.

    Args:
        flow: of one rank.
        sizes: of the tensors.
        cuts: the messages, as `Flow.done` takes them.
        rails: ranks of a host; with one rail the result is that of `Flow.done`.
    """
    groups = [*pairwise((0, *cuts))]
    encoded, encoding, decoded = ([0.0] * rails for _ in range(3))
    sending: list[tuple[float, int, float, float]] = []
    owners = least_loaded([sum(sizes[start:stop]) for start, stop in groups], rails)
    for rail, (start, stop) in zip(owners, groups, strict=True):
        times = flow.group(start, stop)
        ready = flow.whole[stop - 1] + flow.slowing * max(encoding)
        encoded[rail] = max(encoded[rail], ready) + times.encode
        encoding[rail] += times.encode
        sending.append((encoded[rail], rail, times.send, times.decode))
    sent = 0.0
    for moment, rail, send, decode in sorted(sending):  # the link sends in the order of encoding
        sent = max(sent, moment) + send
        decoded[rail] = max(decoded[rail], sent) + decode
    return max(decoded)
