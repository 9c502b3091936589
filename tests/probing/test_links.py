"""Links are found from the times of messages: alike on all ranks, and only those asked for."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from support import PATIENCE_S

from atomo.communicators import Direct
from atomo.planning import EXCHANGES
from atomo.planning.prediction import HALF
from atomo.probing import LINKS, Together, links, measure_links
from atomo.probing.links import Bench
from atomo.transports import Transport, network

LATENCY_S, ROW_S, BYTE_S = 4e-3, 1e-3, 1e-7


class Modelled:
    """Messages that take what they are told to: a first one its latency, each next one less."""

    def __init__(self) -> None:
        self.largest, self._taken_s = 0, 0.0

    def send(self, size: int, count: int) -> None:
        self.largest = max(self.largest, size)
        self._taken_s = LATENCY_S + (count - 1) * ROW_S + count * size * BYTE_S

    def taken_s(self, work: Callable[[], object]) -> float:
        work()
        return self._taken_s


@pytest.mark.parametrize("name", ["Bcast", "Allgather", "Allreduce"])
@pytest.mark.parametrize("under_way", [1, 8])
def test_a_link_is_what_its_messages_took(name: str, under_way: int) -> None:
    modelled, exchange = Modelled(), EXCHANGES[name](4)
    found = Bench(modelled.taken_s, under_way, 10**9).link(exchange, modelled.send)
    assert found.bytes_per_s == pytest.approx(exchange.crossings / BYTE_S)
    small_s = (LATENCY_S + (under_way - 1) * ROW_S) / under_way + links.SMALL_BYTES * BYTE_S
    assert found.latency_s * exchange.latencies == pytest.approx(small_s)
    assert modelled.largest * BYTE_S >= links.LONG_S - LATENCY_S


def test_no_message_is_longer_than_those_of_the_job() -> None:
    modelled = Modelled()
    Bench(modelled.taken_s, 1, 100_000).link(EXCHANGES["Allgather"](4), modelled.send)
    assert modelled.largest == 100_000


def test_ranks_agree_on_the_links_that_they_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "LARGEST_BYTES", 100_000)
    monkeypatch.setattr(links, "TIMES", 1)

    def measured(names: tuple[str, ...], transport: Transport) -> dict[str, object]:
        together = Together(Direct(transport, PATIENCE_S))
        return dict(measure_links(together, transport, PATIENCE_S, names, under_way=4))

    for names in (LINKS, ("Bcast",), ("Allreduce", HALF + "Allreduce")):
        with ThreadPoolExecutor(3) as pool:
            first, *others = pool.map(partial(measured, names), network(3))
        assert {*first} == {*names}
        assert others == [first, first]
    assert not measured(LINKS, network(1)[0])
