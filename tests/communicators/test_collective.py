"""Collectives over threads: the scenarios, and who is named when something goes wrong."""

import pytest
import torch
from collective_scenarios import SCENARIOS, said
from support import together

from atomo.codecs import make_codec
from atomo.communicators.collective import Addend
from atomo.communicators.direct import Direct
from atomo.errors import DeadlineExpired, FrameError
from atomo.transports import network

PATIENCE_S = 600.0  # only a hang takes as long


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_over_threads(scenario, size):
    ranks = [Direct(transport, PATIENCE_S) for transport in network(size)]
    together([lambda rank=rank: scenario(rank) for rank in ranks])


def test_who_does_not_take_part_is_named():
    first, second, _ = (Direct(transport, 0.05) for transport in network(3))
    second.gather(said(1), "a word")  # which sends, and is not waited for
    with pytest.raises(DeadlineExpired, match=r"rank 0 waited .* for a word of rank 2"):
        list(first.gather(said(0), "a word"))


def test_who_sums_something_else_is_told():
    ranks = [Direct(transport, PATIENCE_S) for transport in network(2)]

    def body(rank: Direct) -> None:
        with pytest.raises(FrameError, match=r"came where bucket 1 of step . was expected"):
            rank.sum([Addend(torch.ones(8), make_codec("sgd"))], f"bucket 1 of step {rank.rank}")

    together([lambda rank=rank: body(rank) for rank in ranks])


def test_a_sum_of_other_sizes_is_refused():
    ranks = [Direct(transport, PATIENCE_S) for transport in network(2)]

    def body(rank: Direct) -> None:
        with pytest.raises(FrameError):
            rank.sum([Addend(torch.ones(8 + 8 * rank.rank), make_codec("sgd"))], "a sum")

    together([lambda rank=rank: body(rank) for rank in ranks])
