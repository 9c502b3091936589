"""Merging of MG-WFBP: without compression the planned partition equals it, or is better.

Shi, Chu and Li, "MG-WFBP: Efficient Data Communication for Distributed Synchronous SGD Algorithms",
INFOCOM 2019: encoding and decoding cost nothing, and a message of m bytes takes a + b m. Its
Algorithm 1 goes through the layers once and merges a gradient into the next one if that is ready
less than a start after the link could have begun without it. Where what is merged does not put off
the begin, no partition is done sooner. Where it does, one merge after another may put it off by
more than they save: then ours is done sooner.
"""

from itertools import accumulate
from typing import NamedTuple

import numpy as np
import pytest

from atomo.fusion.flow import Flow, Times
from atomo.fusion.partition import best_partition

EXACT = 1e-12
LARGE_AND_SMALL = (0.02, 0.2, 1.0, 5.0)


class Dense(NamedTuple):
    """The backward pass as the paper describes it: its layers from the last to the first."""

    computing: list[float]  # seconds of the backward pass of each layer, t_b
    sizes: list[float]  # bytes, p
    start: float  # a
    byte: float  # b

    @property
    def ready(self) -> list[float]:
        return [*accumulate(self.computing)]

    @property
    def flow(self) -> Flow:
        each = tuple(Times(0.0, self.byte * size, 0.0) for size in self.sizes)
        return Flow(tuple(self.ready), each, Times(0.0, self.start, 0.0))


def published(given: Dense) -> float:
    """Computes the time at which the merging of Algorithm 1 has sent everything, in the paper's
    names."""
    ready, sizes = given.ready, [*given.sizes]
    t_c = [given.start + given.byte * size for size in sizes]

    def starts() -> list[float]:  # tau_c, by CalculateCommStart
        found: list[float] = []
        free = 0.0
        for moment, taken in zip(ready, t_c, strict=True):
            found.append(max(free, moment))
            free = found[-1] + taken
        return found

    tau_c = starts()
    for layer in range(len(sizes) - 1):
        if ready[layer + 1] - tau_c[layer] < given.start:
            sizes[layer + 1] += sizes[layer]
            t_c[layer] = 0.0
            t_c[layer + 1] = given.start + given.byte * sizes[layer + 1]
            tau_c = starts()
    return tau_c[-1] + t_c[-1]


def least(given: Dense) -> float:
    """Computes the least time over all partitions: with one link the best of a prefix is one
    number."""
    ready, sums = given.ready, [0.0, *accumulate(given.sizes)]
    done = [0.0]
    for stop in range(1, len(sums)):
        ways = (
            max(done[start], ready[stop - 1])
            + given.start
            + given.byte * (sums[stop] - sums[start])
            for start in range(stop)
        )
        done.append(min(ways))
    return done[-1]


def planned(given: Dense) -> float:
    return given.flow.done(best_partition(given.flow))


def drawn(seed: int) -> Dense:
    """Layers of all proportions."""
    draws = np.random.default_rng(seed)
    layers = int(draws.integers(1, 40))
    sizes = draws.exponential(1.0, layers) * draws.exponential(1.0, layers)
    start, byte = draws.choice(LARGE_AND_SMALL), draws.choice(LARGE_AND_SMALL)
    return Dense(draws.exponential(1.0, layers).tolist(), sizes.tolist(), float(start), float(byte))


def merged_for_nothing(seed: int) -> Dense:
    """Returns True if each gradient is ready before the link can begin with the earlier ones, so
    that merging costs nothing, or saves a start-up."""
    given = drawn(seed)
    draws = np.random.default_rng(seed)
    ready, moment, begins, waiting = [], 0.0, 0.0, 0.0
    for size in given.sizes:
        if waiting and draws.random() < 0.6:
            moment = draws.uniform(moment, max(moment, begins))
        else:
            sent = begins + given.start + given.byte * waiting if waiting else 0.0
            moment = max(moment, begins + given.start) + draws.exponential(1.0)
            begins, waiting = max(moment, sent), 0.0
        waiting += size
        ready.append(moment)
    return given._replace(computing=np.diff(ready, prepend=0.0).tolist())


@pytest.mark.parametrize("block", range(4))
def test_it_is_the_best_and_never_later_than_the_published_merging(block: int) -> None:
    for seed in range(60 * block, 60 * (block + 1)):
        given = drawn(seed)
        ours = planned(given)
        assert ours == pytest.approx(least(given), rel=EXACT)
        assert ours <= published(given) * (1 + EXACT)


@pytest.mark.slow
def test_it_is_done_as_early_as_the_published_merging_where_that_is_the_best() -> None:
    messages = set()
    for seed in range(120):
        given = merged_for_nothing(seed)
        assert planned(given) == pytest.approx(published(given), rel=EXACT)
        messages.add(len(best_partition(given.flow)))
    assert len(messages) > 5  # from one message to many


def test_merging_step_by_step_may_put_off_the_begin_by_more_than_a_start() -> None:
    given = Dense([0.0, 0.9, 0.9], [0.5, 0.5, 0.5], start=1.0, byte=1.0)
    assert published(given) == pytest.approx(1.8 + 1 + 1.5)  # all in one, from the last gradient on
    assert planned(given) == pytest.approx(1.8 + 1 + 1.0)  # the first is sent meanwhile
