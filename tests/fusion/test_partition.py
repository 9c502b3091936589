"""The planned partition is the best of all."""

from itertools import pairwise

import numpy as np
import pytest

from atomo.fusion import partition
from atomo.fusion.flow import Flow, Times
from atomo.fusion.partition import best_partition, bound


def flow(seed: int, tensors: int, slowing: float, scale: float) -> Flow:
    """Builds a flow in which encoding, sending and decoding all matter."""
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


@pytest.mark.slow(cases=("5",))
@pytest.mark.parametrize("slowing", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("scale", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("tensors", [1, 2, 5, 8])
def test_none_of_all_partitions_is_done_sooner(tensors: int, scale: float, slowing: float) -> None:
    for seed in range(3):
        given = flow(seed, tensors, slowing, scale)
        least = min(given.done(cuts) for cuts in every_partition(tensors))
        assert given.done(best_partition(given)) == pytest.approx(least, rel=1e-12)


@pytest.mark.slow
def test_none_of_all_partitions_of_twelve_is_done_sooner() -> None:
    given = flow(7, 12, 0.5, 1.0)
    least = min(given.done(cuts) for cuts in every_partition(12))
    assert given.done(best_partition(given)) == pytest.approx(least, rel=1e-12)


def test_cuts_increase_to_the_number_of_tensors() -> None:
    cuts = best_partition(flow(1, 161, 0.5, 1.0))
    assert cuts[-1] == 161
    assert all(before < after for before, after in pairwise((0, *cuts)))


def test_encoding_that_costs_nothing_and_messages_that_do_are_one_message() -> None:
    free = tuple(Times(0.0, 0.01, 0.0) for _ in range(20))
    assert best_partition(Flow((0.0,) * 20, free, Times(0.0, 1.0, 0.0))) == (20,)


@pytest.mark.parametrize("slowing", [0.0, 0.3])
def test_with_few_states_it_is_between_a_bound_and_the_plainest_partitions(
    slowing: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = flow(3, 60, slowing, 1.0)
    best = given.done(best_partition(given))
    for name in ("FEW_STATES", "MAX_STATES"):
        monkeypatch.setattr(partition, name, 1)
    found = given.done(best_partition(given))
    plain = min(given.done((60,)), given.done(range(1, 61)))
    assert bound(given) <= best <= found <= plain


def test_no_partition_is_done_before_the_bound() -> None:
    for seed in range(8):
        given = flow(seed, 7, seed / 8, 1.0)
        least = min(given.done(cuts) for cuts in every_partition(7))
        assert 0 < bound(given) <= least * (1 + 1e-12)
