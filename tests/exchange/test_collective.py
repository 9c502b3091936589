"""Collectives over threads: the scenarios, and who is named when something goes wrong."""

from collections.abc import Iterator
from unittest.mock import patch

import pytest
import torch
from support.collective_scenarios import CARRIERS, SCENARIOS, said, vector
from support.harness import together

from atomo.codecs import make_codec
from atomo.errors import DeadlineExpired, FrameError
from atomo.exchange.collectives import pieces
from atomo.exchange.collectives.collective import Addend
from atomo.exchange.collectives.direct import Direct
from atomo.transports import network

PATIENCE_S = 600.0  # only a hang takes as long
ENTRIES = 100_003


@pytest.fixture
def chunked(monkeypatch):
    """Makes sums between hosts use many chunks; the last pieces are shorter."""
    monkeypatch.setattr(pieces, "SMALLEST", 1000)


def hosts(size: int) -> Iterator[Direct]:
    """Ranks on a host each."""
    for transport in network(size):
        transport.local_size = 1
        yield Direct(transport, PATIENCE_S)


def summed(ranks: list[Direct], carrier: str) -> list[torch.Tensor]:
    """Returns the sum of the vectors at each rank, for values that float16 carries exactly."""
    halves = [vector(one.rank, ENTRIES).bfloat16().half().float() for one in ranks]
    addends = [Addend(half, make_codec(carrier)) for half in halves]
    jobs = zip(ranks, addends, strict=True)
    together([lambda one=one, addend=addend: one.sum([addend], "a sum") for one, addend in jobs])
    return [addend.values for addend in addends]


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_over_threads(scenario, size):
    ranks = [Direct(transport, PATIENCE_S) for transport in network(size)]
    together([lambda rank=rank: scenario(rank) for rank in ranks])


@pytest.mark.slow(
    cases=(
        "bf16",
        "fp16-5",
    )
)
@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("carrier", CARRIERS)
def test_chunks_change_no_bit(chunked, carrier, size):
    # Next to entries 2**29 times as large, halves lose bits, and each chunk has a scale of its own.
    tolerance = 1e-4 if carrier == "fp16" else 0.0
    whole = summed([Direct(transport, PATIENCE_S) for transport in network(size)], carrier)[0]
    for found in summed([*hosts(size)], carrier):
        torch.testing.assert_close(found, whole, rtol=0, atol=tolerance)


@pytest.mark.parametrize("size", [2, 3])
def test_a_rank_waits_only_while_it_sends(chunked, size):
    """Links are idle in neither direction. Only the last sum needs all addends first."""
    ranks, ahead = [*hosts(size)], []
    first = ranks[0]._transport
    receive, counts = first.receive, {"sent": 0, "received": 0}

    def send(to, data, what):
        counts["sent"] += 1
        sending(to, data, what)

    def receiving(source, timeout_s, what):
        ahead.append(counts["sent"] - counts["received"])
        counts["received"] += 1
        return receive(source, timeout_s, what)

    sending = first.send
    with patch.object(first, "send", send), patch.object(first, "receive", receiving):
        summed(ranks, "sgd")
    assert len(ahead) == 2 * (size - 1) * pieces.CHUNKS
    assert min(ahead[: -2 * (size - 1)]) >= 2  # one that this rank's turn is for, and a further


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


@pytest.mark.parametrize("root", [0, 1])
def test_a_sum_at_one_rank_and_a_copy_from_it(root):
    """The sum begins with the values of the root; a copy keeps the sign of zero."""
    ranks = [Direct(transport, PATIENCE_S) for transport in network(3)]
    given = [vector(rank.rank, 1000) for rank in ranks]
    others = [one for rank, one in enumerate(given) if rank != root]
    expected = given[root] + others[0] + others[1]
    expected[0] = given[root][0] = others[0][0] = others[1][0] = -0.0

    def run(rank: Direct) -> None:
        rank.reduce(given[rank.rank], "a sum", root)
        rank.broadcast(given[rank.rank], "its copy", root)

    together([lambda rank=rank: run(rank) for rank in ranks])
    for one in given:
        assert one.view(torch.int32).equal(expected.view(torch.int32))
