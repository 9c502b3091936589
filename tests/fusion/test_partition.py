"""The planned partition is the best of all, and MG-WFBP's where nothing is compressed."""

from itertools import pairwise

import numpy as np
import pytest

from atomo.fusion.flow import Flow, Times
from atomo.fusion.partition import best_partition


def flow(seed: int, tensors: int, slowing: float, scale: float) -> Flow:
    """One in which encoding, sending and decoding all matter."""
    draws = np.random.default_rng(seed)
    sizes = draws.exponential(scale, (tensors, 1)) * draws.exponential(1, (tensors, 3))
    ready = np.cumsum(draws.exponential(1, tensors))
    message = Times(*draws.exponential(0.5, 3).tolist())
    each = tuple(Times(*row) for row in sizes.tolist())
    return Flow(tuple(ready.tolist()), each, message, slowing)


def every_partition(tensors: int) -> list[tuple[int, ...]]:
    chosen = range(1 << (tensors - 1))
    return [
        (*(cut for cut in range(1, tensors) if mask >> (cut - 1) & 1), tensors) for mask in chosen
    ]


@pytest.mark.parametrize("slowing", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("scale", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("tensors", [1, 2, 5, 8])
def test_none_of_all_partitions_is_done_sooner(tensors: int, scale: float, slowing: float) -> None:
    for seed in range(3):
        given = flow(seed, tensors, slowing, scale)
        least = min(given.done(cuts) for cuts in every_partition(tensors))
        assert given.done(best_partition(given)) == pytest.approx(least, rel=1e-12)


def test_none_of_all_partitions_of_twelve_is_done_sooner() -> None:
    given = flow(7, 12, 0.5, 1.0)
    least = min(given.done(cuts) for cuts in every_partition(12))
    assert given.done(best_partition(given)) == pytest.approx(least, rel=1e-12)


def merged_gradients(given: Flow) -> float:
    """When the merging of MG-WFBP (Shi et al., INFOCOM 2019, Theorem 1) is done.

    A layer joins those after it if it is ready before they could have been sent without it, at the
    price of one start: its own wait is less than a message's start.
    """
    start = given.message.send
    tensors = len(given.each)
    cuts: list[int] = []
    free, first = 0.0, 0  # the link; the first tensor of the group at hand
    for last in range(tensors):
        begins = max(free, given.ready[last])
        if last + 1 < tensors and given.ready[last + 1] < begins + start:
            continue
        cuts.append(last + 1)
        free = begins + given.group(first, last + 1).send
        first = last + 1
    return given.done(cuts)


@pytest.mark.parametrize("seed", range(6))
def test_without_compression_it_is_no_later_than_the_published_merging(seed: int) -> None:
    given = flow(seed, 30, 0.0, 0.5)
    nothing = tuple(Times(0.0, each.send, 0.0) for each in given.each)
    dense = Flow(given.ready, nothing, Times(0.0, given.message.send, 0.0))
    assert dense.done(best_partition(dense)) <= merged_gradients(dense) * (1 + 1e-12)


def test_cuts_increase_to_the_number_of_tensors() -> None:
    cuts = best_partition(flow(1, 161, 0.5, 1.0))
    assert cuts[-1] == 161
    assert all(before < after for before, after in pairwise((0, *cuts)))


def test_encoding_that_costs_nothing_and_messages_that_do_are_one_message() -> None:
    free = tuple(Times(0.0, 0.01, 0.0) for _ in range(20))
    assert best_partition(Flow((0.0,) * 20, free, Times(0.0, 1.0, 0.0))) == (20,)
