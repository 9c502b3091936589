"""`hierarchical=`: dense inside a host, compressed between hosts, over threads of this process."""

import math
import threading
from functools import partial
from typing import Any

import pytest
import torch
from hooks.averages import ENTRIES, averaged, gradients, of_ranks
from hooks.loops import batch, flat, on_ranks, plainly, steps
from support.harness import PATIENCE_S, together
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.optim import SGD

from atomo.errors import ConfigError, DeadlineExpired, Diverged, PeerLost, TransportError
from atomo.exchange.collectives.collective import Collective
from atomo.exchange.collectives.direct import Direct
from atomo.exchange.collectives.hosts import hosts_named
from atomo.exchange.collectives.intra_host_group import split_hosts
from atomo.hooks.adapter.averager import Averager
from atomo.hooks.adapter.chunks import Chunk
from atomo.hooks.adapter.exchange import Exchange
from atomo.hooks.options.hook_config import HookConfig, make_exchange
from atomo.hooks.states.rank_files import load_ranks, save_rank
from atomo.options.hierarchy import canonical_hierarchy
from atomo.transports import network

make = partial(SGD, lr=0.2)


def sgd(network: torch.nn.Module) -> SGD:
    return make(network.parameters())


@pytest.mark.parametrize("ranks", [3, 4])
def test_the_mean_is_that_of_all_ranks(ranks):
    """Holds for hosts with different numbers of ranks as well. Traffic is counted by host."""
    given = of_ranks(ranks)
    mean = {name: sum(one[name] for one in given) / ranks for name in ENTRIES}
    made, raised = averaged(given, hierarchical="2", code="sgd")
    assert raised == [None] * ranks
    for name, expected in mean.items():
        torch.testing.assert_close(given[0][name], expected)
        assert all(one[name].equal(given[0][name]) for one in given)
    dense = sum(4 * one.numel() for one in mean.values())
    assert [one.stats.sent_bytes for one in made] == [dense, 0, dense, 0][:ranks]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [3, 4])
def test_dense_equals_plain_sgd(ranks):
    """Holds for hosts with different numbers of ranks as well."""
    networks, _ = on_ranks(ranks, "sgd", steps(ranks), sgd, hierarchical=2)
    torch.testing.assert_close(flat(networks[0]), plainly(sgd))
    assert all(flat(one).equal(flat(networks[0])) for one in networks)


CASES = [
    ("topk(ratio=0.1)", {"memory": "residual"}),
    ("topk(ratio=0.1)", {"memory": "dgc(clip=1.0)"}),  # the norm of the whole gradient at once
    ("powersgd(rank=1)", {"dense_steps": 1}),
    ("bf16", {"dense_below": 10}),
    ("terngrad(scale=shared)", {}),  # agrees on scales
    ("svd(rank=1,selection=top)", {}),
    ("chunked(ratio=0.2,chunk=4)", {}),
]


@pytest.mark.long(
    cases=(
        "('bf16'",
        "('svd",
        "('topk(ratio=0.1)', {'memory': 'dgc",
    )
)
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_host_is_one_worker(case):
    """Four ranks, two on each host, equal two ranks with the batches of both."""
    code, given = case
    networks, optimizers = on_ranks(4, code, shares([0, 2, 1, 3], 5), sgd, hierarchical=2, **given)
    alone, others = on_ranks(2, code, shares([0, 1], 5), sgd, **given)
    torch.testing.assert_close(flat(networks[0]), flat(alone[0]), rtol=1e-4, atol=1e-5)
    assert all(flat(one).equal(flat(networks[0])) for one in networks)
    stats = [optimizer.exchange.stats for optimizer in optimizers[::2]]
    for one, other in zip(stats, others, strict=True):
        assert one.steps == other.exchange.stats.steps
        assert one.dense_bytes == other.exchange.stats.dense_bytes
        assert abs(one.sent_bytes - other.exchange.stats.sent_bytes) < 0.05 * one.sent_bytes
    assert [one.exchange.stats.steps for one in optimizers] == [5] * 4


def shares(places: list[int], count: int) -> Any:
    """Steps in which each rank has that share of a batch."""

    def body(rank: int, network: torch.nn.Module, optimizer: Any) -> None:
        for step in range(count):
            images, labels = (one[places[rank] :: len(places)] for one in batch(step))
            optimizer.zero_grad()
            cross_entropy(network(images), labels).backward()
            optimizer.step()

    return body


def test_half_precision_is_added_up_as_float32():
    """A host's sum of entries near the largest float16 overflows; their mean does not."""
    most = torch.finfo(torch.float16).max
    given = [{n: torch.full(s, most / 1.5).half() for n, s in ENTRIES.items()} for _ in range(4)]
    for one in given[2:]:
        one["bias"].zero_()
    _, raised = averaged(given, hierarchical="2", code="sgd")
    assert raised == [None] * 4
    for one in given:
        torch.testing.assert_close(one["bias"], torch.full((50,), most / 3).half())


@pytest.mark.parametrize("rank", [0, 3])
def test_all_ranks_raise_what_is_wrong_on_one(rank):
    given = of_ranks(4)
    given[rank]["weight"][3, 4] = math.nan
    _, raised = averaged(given, hierarchical="2")
    words = f"rank {rank // 2}: the gradient of weight is no longer finite"
    assert [(isinstance(one, Diverged), words in str(one)) for one in raised] == [(True, True)] * 4


@pytest.mark.parametrize("memory", ["residual", "dgc(clip=1.0)"])
def test_what_the_first_rank_alone_fails_with_is_told(memory):
    """Holds as well if the whole gradient is encoded at once."""

    def lose(exchange: Exchange) -> None:
        def lost(sent: object) -> None:
            raise PeerLost(7, "sending")

        exchange._averager.exchange = lost

    given = of_ranks(4)
    _, raised = averaged(given, before=lose, hierarchical="2", memory=memory)
    kinds = [PeerLost, TransportError] * 2
    assert [(type(one), str(one)) for one in raised] == [
        (kind, "rank 7 is gone; it was lost while sending") for kind in kinds
    ]


@pytest.mark.parametrize("one_order", [False, True])
def test_where_one_order_is_needed_one_thread_does_all(one_order, monkeypatch):
    threads: set[str] = set()
    exchange = Averager.exchange

    def noting(self, sent):
        threads.add(threading.current_thread().name)
        return exchange(self, sent)

    monkeypatch.setattr(Averager, "exchange", noting)
    monkeypatch.setattr(Collective, "in_one_order", one_order)
    given = of_ranks(4)
    mean = sum(one["bias"] for one in given) / 4
    _, raised = averaged(given, hierarchical="2", code="bf16")
    assert raised == [None] * 4
    torch.testing.assert_close(given[3]["bias"], mean, rtol=1e-2, atol=1e-2)
    assert threads == {"atomo-encode" if one_order else "atomo-exchange"}


@pytest.mark.slow
def test_who_does_not_come_is_waited_for_as_long_as_said():
    """The first rank of the same host waits for the rank, and the other host for that
    first rank.
    """
    transports, raised = network(4), []

    def run(rank: int) -> None:
        choice, given = HookConfig("topk", hierarchical="2"), gradients(rank)
        exchange = make_exchange(choice, Direct(transports[rank], 2.0), given)
        if rank == 3:
            return
        exchange.submit(Chunk(0, given), 1.0, True, lambda: None)
        with pytest.raises(DeadlineExpired):
            exchange.finish()
        raised.append(rank)

    together([lambda rank=rank: run(rank) for rank in range(4)], lambda: transports[0].abort(1))
    assert sorted(raised) == [0, 1, 2]


def test_steps_that_are_skipped_are_on_all_ranks():
    given = of_ranks(4)
    given[3]["bias"][7] = math.inf
    made, raised = averaged(given, hierarchical="2", skips=True)
    assert raised == [None] * 4
    assert all(bool(one["bias"].isnan().all()) for one in given)
    assert [one.stats.skipped for one in made] == [1] * 4


@pytest.mark.parametrize("loads", ["2", ""])
def test_a_state_goes_on_elsewhere(loads, tmp_path):
    """Two memories of four ranks: in files, gathered, on the same hosts and without."""
    made, _ = averaged(of_ranks(4), hierarchical="2", memory="residual")
    with_memory = [one.state_dict() for one in made if "memories" in one.state_dict()]
    assert [[*one["memories"]] for one in with_memory] == [["0"], ["1"]]
    for one in made:
        save_rank(one, tmp_path)
    assert len([*tmp_path.glob("atomo-model-0-rank-*")]) == 2
    again, _ = averaged(of_ranks(4), hierarchical=loads, memory="residual")
    for one in again:
        load_ranks(one, tmp_path)
        assert one.state_dict()["step"] == 1
    torch.testing.assert_close(kept(again), kept(made))


def kept(exchanges: list[Exchange]) -> Tensor:
    """Returns the sum of all memories."""
    states = [one.state_dict().get("memories", {}).values() for one in exchanges]
    return sum(one["weight"] for state in states for one in state)


def test_a_state_is_gathered_at_the_first_rank():
    transports = network(4)
    found: list[Any] = [None] * 4

    def run(rank: int) -> None:
        choice = HookConfig("topk(ratio=0.1)", hierarchical="2")
        exchange = make_exchange(choice, Direct(transports[rank], PATIENCE_S), gradients(rank))
        found[rank] = exchange.gather()
        exchange.load_state_dict(found[rank] or exchange.state_dict())

    ranks = [lambda rank=rank: run(rank) for rank in range(4)]
    together(ranks, lambda: transports[0].abort(1))
    assert [one is not None for one in found] == [True, False, False, False]
    assert (found[0]["ranks"], [*found[0]["memories"]]) == (2, ["0", "1"])


@pytest.mark.parametrize(
    ("ranks", "said", "match"),
    [
        (2, "2", "2 ranks are then one host"),
        (2, "yes", "all 2 ranks are on"),
        (2, "1", "2 or more"),
    ],
)
def test_what_cannot_be_is_refused(ranks, said, match):
    with pytest.raises(ConfigError, match=match):
        averaged(of_ranks(ranks), hierarchical=canonical_hierarchy(said))


def test_all_ranks_say_the_same():
    transports = network(2)

    def run(rank: int) -> None:
        choice = HookConfig("sgd", hierarchical=["", "2"][rank])
        make_exchange(choice, Direct(transports[rank], PATIENCE_S), gradients(0))

    with pytest.raises(ConfigError, match=r"^rank 1 has hierarchical 2, rank 0 no: "):
        together([lambda: run(0), lambda: run(1)], lambda: transports[0].abort(1))


def test_hosts_may_be_anywhere():
    """Hosts are known by their names, in any order of ranks."""
    transports, found = network(5), [None] * 5

    def run(rank: int) -> None:
        hosts = hosts_named([b"a", b"b", b"b", b"a", b"a"])
        inside, between = split_hosts(hosts, Direct(transports[rank], PATIENCE_S))
        found[rank] = (inside.leads, between.rank, between.size)

    together([lambda rank=rank: run(rank) for rank in range(5)], lambda: transports[0].abort(1))
    assert found == [(True, 0, 2), (True, 1, 2), (False, 0, 2), (False, 1, 2), (False, 0, 1)]
