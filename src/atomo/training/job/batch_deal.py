"""Batches of a round of local steps, dealt among ranks of different speeds.

A step of n ranks has n batches, as without speeds, and a round of h steps has n h. Each rank gets
one batch of the first step. Each later batch goes to the rank that would finish it first. So a rank
that is three times slower gets about a third of the batches, all ranks end a round together, and
the samples, the epochs and the learning rate of a step do not depend on speeds.
"""

import heapq
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import count, islice
from statistics import median

__all__ = ["BatchTurn", "counts", "deal", "seconds_of", "steps_in", "turns"]

BatchTurn = tuple[int, int]
"""A batch: its step, and its place among the batches of the step."""

SHORTEST_S = 1e-6  # the seconds of a step that a clock may call nothing


def deal(seconds: Sequence[float]) -> Iterator[list[int]]:
    """Yields for each step of a round the rank of each batch.

    >>> list(islice(deal([1.0, 1.0]), 2)), list(islice(deal([1.0, 3.0]), 3))
    ([[0, 1], [0, 1]], [[0, 1], [0, 0], [0, 0]])

    Args:
        seconds: of a local step of each rank.
    """
    ranks = range(len(seconds))
    yield [*ranks]
    finish = [(2 * max(SHORTEST_S, seconds[rank]), rank) for rank in ranks]
    heapq.heapify(finish)
    while True:
        dealt = []
        for _ in ranks:
            end_s, rank = finish[0]
            heapq.heapreplace(finish, (end_s + max(SHORTEST_S, seconds[rank]), rank))
            dealt.append(rank)
        yield dealt


def turns(seconds: Sequence[float], own: int, first: int, steps: int) -> Iterator[BatchTurn]:
    """Yields the batches of one rank in a round.

    >>> list(turns([1.0, 3.0], 0, 10, 3))
    [(10, 0), (11, 0), (11, 1), (12, 0), (12, 1)]

    Args:
        seconds: of a local step of each rank.
        own: the place of the rank among the ranks.
        first: the first step of the round.
        steps: the number of steps.
    """
    for step, dealt in zip(count(first), islice(deal(seconds), steps), strict=False):
        for place, rank in enumerate(dealt):
            if rank == own:
                yield step, place


def counts(seconds: Sequence[float], steps: int) -> list[int]:
    """Returns the number of local steps of each rank in a round.

    >>> counts([1.0, 3.0], 3)
    [5, 1]
    """
    dealt = Counter(rank for row in islice(deal(seconds), steps) for rank in row)
    return [dealt[rank] for rank in range(len(seconds))]


def steps_in(limit_s: float, seconds: Sequence[float]) -> int:
    """Returns the steps of a round in which all ranks compute for a time; at least 1.

    >>> steps_in(8.0, [1.0, 1.0]), steps_in(8.0, [1.0, 4.0]), steps_in(0.5, [1.0])
    (8, 5, 1)
    """
    batches = sum(limit_s / max(SHORTEST_S, each) for each in seconds)
    # A quotient just below a whole number is that number.
    return max(1, math.floor(batches / len(seconds) * (1 + 1e-9)))


def seconds_of(ranks: Sequence[int], known: Mapping[int, float]) -> list[float]:
    """Returns the seconds of a local step of each rank; a rank that joined has the median.

    >>> seconds_of([0, 2, 3], {0: 1.0, 1: 9.0, 2: 2.0})
    [1.0, 2.0, 2.0]
    """
    usual = median([*known.values()]) if known else 1.0
    return [known.get(rank, usual) for rank in ranks]
