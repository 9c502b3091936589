"""The partition of a model's tensors into messages by which an exchange is done first.

An exact dynamic programme. Two ways to group the first j tensors cannot be compared by one number:
one may leave the encoder free earlier, the other the link. So each j keeps the Pareto frontier of
(encoder free, link free, decoder free, delay of the backward pass), and no state that even an ideal
rest, in which no machine waits for another, would bring later than a partition that is known. A
first pass, which keeps but a few states of each j, finds one that is hard to beat.
"""

from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from atomo.fusion.flow import Flow
from atomo.grouping import Grouping
from atomo.kernels.jit import jit

__all__ = ["best_partition"]

States = NDArray[np.float64]  # [m, 4]: encoder, link and decoder free, delay of the backward pass
FEW: Final = 4
ROUNDING: Final = 1 + 1e-9


@final
@dataclass(frozen=True)
class Prefix:
    """The ways to group the first tensors that none other is better than."""

    states: States
    before: NDArray[Any]  # [m, 2]: tensors in the groups before the last, and which of their states


def best_partition(flow: Flow) -> tuple[int, ...]:
    """The cuts (as `Flow.done` takes them) by which all is decoded first."""
    sizes = range(len(flow.each))  # which none of these ways looks at
    known = min(flow.done(Grouping(way).cuts(sizes)) for way in ("layer", "one"))
    for most in (FEW, None):
        prefixes = grown(flow, known * ROUNDING, most)
        known = float(prefixes[-1].states[:, 2].min())
    return traced(prefixes)


def grown(flow: Flow, known: float, most: int | None) -> list[Prefix]:
    """The prefixes of 0, 1, 2, ... tensors, of each the `most` states that promise most, or all."""
    totals, whole = np.array(flow.totals), np.array(flow.whole)
    prefixes = [Prefix(np.zeros((1, 4)), np.zeros((1, 2), dtype=np.int64))]
    for stop in range(1, len(whole) + 1):
        states, before = extended(flow, totals, whole, prefixes, stop)
        promised = ideal(flow, totals, whole, states, stop)
        within = np.flatnonzero(promised <= np.full_like(promised, known))
        if most is None:
            within = within[np.lexsort(states[within].T[::-1])]
            kept = within[frontier(states[within])]
        else:
            kept = within[promised[within].argsort(kind="stable")[:most]]
        prefixes.append(Prefix(states[kept], before[kept]))
    return prefixes


def extended(
    flow: Flow, totals: NDArray[Any], whole: NDArray[Any], prefixes: list[Prefix], stop: int
) -> tuple[States, NDArray[Any]]:
    """Every state of every prefix with one group more, that ends before tensor `stop`."""
    counts = [len(prefix.states) for prefix in prefixes]
    start = np.repeat(np.arange(stop), counts)
    index = np.concatenate([np.arange(count) for count in counts])
    old = np.concatenate([prefix.states for prefix in prefixes])
    encode, send, decode = (np.array(flow.message) + totals[stop] - totals[start]).T
    encoded = np.maximum(old[:, 0], whole[stop - 1] + old[:, 3]) + encode
    delay = old[:, 3] + flow.slowing * encode
    sent = np.maximum(old[:, 1], encoded) + send
    decoded = np.maximum(old[:, 2], sent) + decode
    return np.stack([encoded, sent, decoded, delay], 1), np.stack([start, index], 1)


def ideal(
    flow: Flow, totals: NDArray[Any], whole: NDArray[Any], states: States, stop: int
) -> NDArray[np.float64]:
    """When all could be decoded at the earliest, from each state: the rest is one message or more.

    Each machine has all of the rest to do, and the last tensor still goes through those behind it.
    The rest's encoding delays the backward pass or comes after it.
    """
    if stop == len(whole):
        return states[:, 2]
    message = np.array(flow.message)
    rest = message + totals[-1] - totals[stop]
    last = message + totals[-1] - totals[-2]
    by_encoder = states[:, 0] + rest[0] + last[1] + last[2]
    by_link = states[:, 1] + rest[1] + last[2]
    by_decoder = states[:, 2] + rest[2]
    beside = flow.slowing * (rest[0] - last[0])
    by_backward = whole[-1] + states[:, 3] + beside + last.sum()
    bounds: NDArray[np.float64] = np.stack([by_encoder, by_link, by_decoder, by_backward])
    latest: NDArray[np.float64] = bounds.max(axis=0)
    return latest


@jit
def frontier(states: States) -> NDArray[np.int64]:
    """Which states no other is at least as good as in everything.

    Args:
        states: in lexicographic order, so that none is better than one that comes before it.
    """
    kept = np.empty(len(states), dtype=np.int64)
    size = 0
    for i in range(len(states)):
        beaten = False
        for j in kept[:size]:
            if (
                states[j, 1] <= states[i, 1]
                and states[j, 2] <= states[i, 2]
                and states[j, 3] <= states[i, 3]
            ):
                beaten = True
                break
        if not beaten:
            kept[size] = i
            size += 1
    return kept[:size]


def traced(prefixes: list[Prefix]) -> tuple[int, ...]:
    """The cuts on the way to the best state of all tensors."""
    stop = len(prefixes) - 1
    index = int(prefixes[stop].states[:, 2].argmin())
    cuts: list[int] = []
    while stop:
        cuts.append(stop)
        stop, index = (int(number) for number in prefixes[stop].before[index])
    return tuple(reversed(cuts))
