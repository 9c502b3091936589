"""Links are found from the times of messages: alike on all ranks, and only those asked for."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from support.harness import PATIENCE_S

from atomo.exchange import Direct
from atomo.planning import EXCHANGES
from atomo.planning.prediction import HALF
from atomo.planning.probe import LINKS, SynchronizedTimer, links, measure_links
from atomo.planning.probe.links import LinkTimer
from atomo.transports import Transport, network

LATENCY_S, ROW_S, BYTE_S = 4e-3, 1e-3, 1e-7


class Modelled:
    """A link with modelled times: the latency for the first message, less for each next one."""

    def __init__(self) -> None:
        self.largest, self._taken_s = 0, 0.0

    def send(self, size: int, count: int) -> None:
        self.largest = max(self.largest, size)
        self._taken_s = LATENCY_S + (count - 1) * ROW_S + count * size * BYTE_S

    def taken_s(self, work: Callable[[], object]) -> float:
        work()
        return self._taken_s


@pytest.mark.slow(cases=("1-", "8-All"))
@pytest.mark.parametrize("name", ["ParameterServer", "Allgather", "Allreduce"])
@pytest.mark.parametrize("under_way", [1, 8])
def test_a_link_is_what_its_messages_took(name: str, under_way: int) -> None:
    modelled, exchange = Modelled(), EXCHANGES[name](4)
    link = LinkTimer(modelled.taken_s, under_way, 10**9).link(exchange, modelled.send)
    assert link.bytes_per_s == pytest.approx(exchange.crossings / BYTE_S)
    small_s = (LATENCY_S + (under_way - 1) * ROW_S) / under_way + links.SMALL_BYTES * BYTE_S
    assert link.latency_s * exchange.latencies == pytest.approx(small_s)
    assert modelled.largest * BYTE_S >= links.LONG_S - LATENCY_S


class Dropping:
    """Messages that fit into a queue take their time at the speed of the link; others wait too."""

    def __init__(self) -> None:
        self._taken_s = 0.0

    def send(self, size: int, count: int) -> None:
        late_s = 2e-7 * max(0, size - 200_000)
        self._taken_s = count * (LATENCY_S + size * BYTE_S + late_s)

    def taken_s(self, work: Callable[[], object]) -> float:
        work()
        return self._taken_s


@pytest.mark.slow
def test_shorter_messages_have_the_bandwidth_that_they_were_seen_to_have() -> None:
    dropping, exchange = Dropping(), EXCHANGES["Allreduce"](3)
    link = LinkTimer(dropping.taken_s, 1, 10**9).link(exchange, dropping.send)
    assert link.bytes_per_s == pytest.approx(exchange.crossings / 3e-7)
    assert [size for size, _ in link.shorter] == sorted(size for size, _ in link.shorter)
    for size in (20_000, 100_000):
        there = link.at(size)
        assert there.bytes_per_s == pytest.approx(exchange.crossings / BYTE_S, rel=0.05)
        assert there.latency_s == link.latency_s
    assert link.at(10**9).bytes_per_s == link.bytes_per_s
    smallest, speed = link.shorter[0]
    assert link.at(1).bytes_per_s == pytest.approx(speed)
    between = (smallest + link.shorter[1][0]) / 2
    ends = sorted((speed, link.shorter[1][1]))
    assert ends[0] - 1 <= link.at(between).bytes_per_s <= ends[1] + 1


class Limited:
    """A link with a token bucket: after a rest, the first bytes pass at once."""

    def __init__(self) -> None:
        self._taken_s, self._rested = 0.0, False

    def rest(self, seconds: float) -> None:
        self._rested = seconds >= 0.05

    def send(self, size: int, count: int) -> None:
        ahead = min(size, 10_000) if self._rested else 0
        self._taken_s, self._rested = count * (LATENCY_S + 10 * BYTE_S * (size - ahead)), False

    def taken_s(self, work: Callable[[], object]) -> float:
        work()
        return self._taken_s


def test_what_a_rest_lets_through_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    limited, exchange = Limited(), EXCHANGES["ParameterServer"](2)
    monkeypatch.setattr(links.time, "sleep", limited.rest)
    link = LinkTimer(limited.taken_s, 1, 10**9).link(exchange, limited.send)
    assert link.rested_bytes == pytest.approx(exchange.crossings * 10_000)
    assert link.at(links.SHORTEST_BYTES).rested_bytes == link.rested_bytes


@pytest.mark.slow
def test_messages_that_mostly_wait_say_nothing_of_bandwidth() -> None:
    modelled = Modelled()
    link = LinkTimer(modelled.taken_s, 1, 10**9).link(EXCHANGES["Allgather"](4), modelled.send)
    assert min(size for size, _ in link.shorter) * BYTE_S > LATENCY_S


@pytest.mark.slow
def test_no_message_is_longer_than_those_of_the_job() -> None:
    modelled = Modelled()
    LinkTimer(modelled.taken_s, 1, 100_000).link(EXCHANGES["Allgather"](4), modelled.send)
    assert modelled.largest == 100_000


@pytest.mark.slow
def test_ranks_agree_on_the_links_that_they_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "LARGEST_BYTES", 100_000)
    monkeypatch.setattr(links, "TIMES", 1)

    def measured(names: tuple[str, ...], transport: Transport) -> dict[str, object]:
        timer = SynchronizedTimer(Direct(transport, PATIENCE_S))
        return dict(measure_links(timer, transport, PATIENCE_S, names, under_way=4))

    for names in (LINKS, ("ParameterServer",), ("Allreduce", HALF + "Allreduce")):
        with ThreadPoolExecutor(3) as pool:
            first, *remaining = pool.map(partial(measured, names), network(3))
        assert {*first} == {*names}
        assert remaining == [first, first]
    assert not measured(LINKS, network(1)[0])
