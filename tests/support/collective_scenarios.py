"""Scenarios that every implementation of `Collective` must pass; each rank takes part."""

import numpy as np
import torch
from torch import Tensor

from atomo.codecs import make_codec
from atomo.exchange.collectives.collective import Addend, Collective

__all__ = ["SCENARIOS"]

SIZES = (1, 2, 5, 100_003)  # entries: also fewer than there are ranks
CARRIERS = {"sgd": 0.0, "bf16": 2**-8, "fp16": 2**-10}  # wire codec -> its relative rounding error


def said(rank: int, round: int = 0) -> np.ndarray:
    """Returns the data of a rank. Its length differs from that of every other rank."""
    return np.full(1 + 1000 * rank + round, rank, np.uint8)


def vector(rank: int, size: int) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * rank + size)
    return torch.randn(size, generator=generator) * 10.0**rank


def gather_keeps_the_order_of_the_ranks(collective: Collective) -> None:
    found = list(collective.gather(said(collective.rank), "a word"))
    assert [one.tolist() for one in found] == [
        said(rank).tolist() for rank in range(collective.size)
    ]


def gathers_overlap(collective: Collective) -> None:
    under_way = [collective.gather(said(collective.rank, n), f"word {n}") for n in range(5)]
    for n, found in enumerate(under_way):
        assert [len(one) for one in found] == [len(said(r, n)) for r in range(collective.size)]


def large_gathers_overlap_those_that_are_read(collective: Collective) -> None:
    """One thread begins exchanges while another receives: received data keeps one order."""
    sizes = (300_000, 10, 200_000)
    under_way = [
        collective.gather(np.full(size + collective.rank, n, np.uint8), f"word {n}")
        for n, size in enumerate(sizes)
    ]
    for n, found in enumerate(under_way):
        for rank, one in enumerate(found):
            assert (len(one), int(one[0]), int(one[-1])) == (sizes[n] + rank, n, n)


def unequal_gathers_agree(collective: Collective) -> None:
    """Some frames are large and some are small. No rank chooses the protocol by its own frame
    alone.
    """
    under_way = [
        collective.gather(np.full(10 if collective.rank else 300_000, n, np.uint8), f"word {n}")
        for n in range(3)
    ]
    for n, found in enumerate(under_way):
        assert [int(one[0]) for one in found] == [n] * collective.size


def swaps_bring_each_rank_its_pieces(collective: Collective) -> None:
    """Piece lengths differ by sender and by receiver."""
    pieces = [
        np.full(1 + 300 * collective.rank + receiver, collective.rank, np.uint8)
        for receiver in range(collective.size)
    ]
    for number in range(2):
        found = collective.swap(pieces, f"pieces of step {number}")
        assert [one.tolist() for one in found] == [
            [sender] * (1 + 300 * sender + collective.rank) for sender in range(collective.size)
        ]


def sums_are_sums(collective: Collective) -> None:
    for size in SIZES:
        everyones = [vector(rank, size) for rank in range(collective.size)]
        addends = [
            Addend(everyones[collective.rank].clone(), make_codec(name)) for name in CARRIERS
        ]
        collective.sum(addends, f"{size} entries")
        whole = torch.stack(everyones).sum(0)
        largest = float(torch.stack(everyones).abs().sum(0).max())
        for addend, rounded in zip(addends, CARRIERS.values(), strict=True):
            assert float((addend.values - whole).abs().max()) <= (2 * rounded + 1e-6) * largest


def sums_are_the_same_bits_everywhere(collective: Collective) -> None:
    for name in CARRIERS:
        addend = Addend(vector(collective.rank, 10_001), make_codec(name))
        collective.sum([addend], name)
        bits = addend.values.numpy().view(np.uint8)
        assert all((other == bits).all() for other in collective.gather(bits, "the sum"))


def sums_beyond_half_precision_do_not_overflow(collective: Collective) -> None:
    addend = Addend(torch.full((64,), 60_000.0), make_codec("fp16"))
    collective.sum([addend], "large numbers")
    whole = torch.full((64,), 60_000.0 * collective.size)
    torch.testing.assert_close(addend.values, whole, rtol=CARRIERS["fp16"], atol=0)


SCENARIOS = (
    gather_keeps_the_order_of_the_ranks,
    gathers_overlap,
    large_gathers_overlap_those_that_are_read,
    unequal_gathers_agree,
    swaps_bring_each_rank_its_pieces,
    sums_are_sums,
    sums_are_the_same_bits_everywhere,
    sums_beyond_half_precision_do_not_overflow,
)
