"""Workers that die or hang at any moment: the step goes on with those that are left, each gradient
counts once, and the sum of what became of them is what was asked for.
"""

import random
from collections.abc import Callable
from itertools import count

import pytest
import torch
from support.crashing_transport import CrashingTransport
from support.harness import together
from support.server_harness import ENTRIES, PARAMETERS, RAW, REPORT, TIMEOUT_S, ServerHarness, kept
from torch import Tensor

from atomo.codecs import make_codec
from atomo.errors import DeadlineExpired, PeerLost, TooFewWorkers
from atomo.exchange import Client, Compressor, GradientCounts, Server
from atomo.fusion import plan
from atomo.memory import Residual
from atomo.options.grouping import megabytes
from atomo.transports import LocalTransport, network
from atomo.wire import Bytes, Kind


def killed(harness: ServerHarness, worker: int) -> None:
    harness.transports[worker].exit_rank(137)


def test_a_step_goes_on_with_those_who_are_left():
    harness = ServerHarness(workers=3, needed=3)
    one, _, three = (harness.client(worker) for worker in (1, 2, 3))
    harness.server.broadcast(1, torch.zeros(ENTRIES))
    for worker, client in ((1, one), (3, three)):
        assert client.pull().workers == (1, 2, 3)
        harness.answer(client, worker)
    killed(harness, 2)
    assert [*harness.server.collect(harness.sum)] == [1, 3]
    assert harness.sum.tolist()[:4] == pytest.approx([0.0, 4 / 9, 0.0, 5 / 9])  # by their images
    assert harness.server.gradient_counts() == GradientCounts(
        asked=3, used=2, late=0, lost=1, under_way=0
    )
    told = harness.server.take_notes()
    assert len(told) == 1
    assert "worker 2 is gone; 2 of 3 workers continue" in told[0]
    harness.server.broadcast(2, torch.zeros(ENTRIES))
    assert [client.pull().workers for client in (one, three)] == [(1, 3), (1, 3)]


def test_what_a_dead_worker_sent_of_a_gradient_is_taken_out_of_the_sum():
    harness = ServerHarness(workers=2, needed=2)
    clients = [harness.client(1), harness.client(2)]
    harness.server.broadcast(1, torch.zeros(ENTRIES))
    for worker, client in enumerate(clients, 1):
        client.pull()
        harness.answer(client, worker, buckets=1)  # by now the master may add up the first
    killed(harness, 1)
    harness.answer(clients[1], 2, first=1)
    assert [*harness.server.collect(harness.sum)] == [2]
    assert harness.sum.nonzero().flatten().tolist() == [2]
    assert float(harness.sum[2]) == 1.0


def test_a_gradient_that_was_complete_counts_though_its_worker_is_dead_by_then():
    harness = ServerHarness(workers=2, needed=2)
    clients = [harness.client(1), harness.client(2)]
    harness.server.broadcast(1, torch.zeros(ENTRIES))
    for worker, client in enumerate(clients, 1):
        client.pull()
        harness.answer(client, worker)
    killed(harness, 1)
    assert [*harness.server.collect(harness.sum)] == [1, 2]
    assert harness.server.gradient_counts() == GradientCounts(
        asked=2, used=2, late=0, lost=0, under_way=0
    )


def test_a_silent_worker_is_killed_once_its_time_is_up():
    harness = ServerHarness(workers=2, needed=2, timeout_s=0.05)
    one = harness.client(1)
    harness.server.broadcast(1, torch.zeros(ENTRIES))
    one.pull()
    harness.answer(one, 1)
    assert [*harness.server.collect(harness.sum)] == [1]
    told = " ".join(harness.server.take_notes())
    assert "worker 2 did not answer for 0.05 s, the --timeout, and was killed" in told
    with pytest.raises(PeerLost, match="rank 2 is gone"):  # a zombie that wakes is heard no more
        harness.transports[2].send(0, one_byte(), "a word")


def test_of_several_silent_workers_those_that_are_stuck_are_killed_first(monkeypatch):
    """The others may have waited for them, and have their time again."""
    harness, now, asked = ServerHarness(workers=3, needed=3, timeout_s=0.05), [0.0], list[int]()
    harness.server._members.failure_detector._clock = lambda: now[0]
    clients = [harness.client(worker) for worker in (1, 2, 3)]
    harness.server.broadcast(1, torch.zeros(ENTRIES))
    for worker in (1, 3):
        clients[worker - 1].pull()
    harness.answer(clients[0], 1)

    def fence(transport: LocalTransport, rank: int, *, if_stuck: bool = False) -> bool:
        assert if_stuck
        asked.append(rank)
        if rank == 2:
            killed(harness, rank)
        else:
            harness.answer(clients[rank - 1], rank)  # which waited for the second
        return True

    monkeypatch.setattr(LocalTransport, "fence", fence)
    now[0] = 0.06
    assert [*harness.server.collect(harness.sum)] == [1, 3]
    assert asked == [2, 3]
    told = " ".join(harness.server.take_notes())
    assert "worker [2, 3] did not answer for 0.05 s" in told
    assert "worker 2 is gone" in told
    assert "was killed" not in told


@pytest.mark.slow
def test_who_is_silent_again_is_killed_though_nobody_is_stuck():
    harness, looks = ServerHarness(workers=3, needed=3, timeout_s=0.05), count()
    # Both are given the step at nearly the same moment, however late threads get their turns.
    harness.server._members.failure_detector._clock = lambda: 1e-4 * next(looks)
    harness.server.broadcast(1, torch.zeros(ENTRIES))
    first = harness.client(1)
    first.pull()
    harness.answer(first, 1)
    assert [*harness.server.collect(harness.sum)] == [1]
    told = " ".join(harness.server.take_notes())
    assert all(f"worker {who} did not answer for 0.05 s" in told for who in ([2, 3], 2, 3))


def one_byte() -> Bytes:
    return torch.zeros(1, dtype=torch.uint8).numpy()


def test_where_all_are_silent_nobody_is_killed():
    harness, now = ServerHarness(workers=2, needed=2, timeout_s=0.05), [0.0]
    # Both are given the step at the same moment, however late threads get their turns.
    harness.server._members.failure_detector._clock = lambda: now[0]
    harness.server.broadcast(5, torch.zeros(ENTRIES))
    now[0] = 0.06
    named = r"rank 0 waited 0.05 s for the gradients of worker \[1, 2\] at step 5; see --timeout"
    with pytest.raises(DeadlineExpired, match=named):
        harness.server.collect(harness.sum)
    assert harness.server.workers == (1, 2)


def test_too_few_end_the_run_and_take_back_what_never_counts():
    harness = ServerHarness(workers=3, needed=3, min_workers=3)
    clients = [harness.client(worker) for worker in (1, 2, 3)]
    harness.server.broadcast(1, torch.zeros(ENTRIES))
    for worker in (1, 2):
        clients[worker - 1].pull()
        harness.answer(clients[worker - 1], worker)
    killed(harness, 3)
    with pytest.raises(TooFewWorkers, match=r"worker \[3\] of 3 died, which leaves 2; --min-w"):
        harness.server.collect(harness.sum)
    states: list[dict[str, Tensor]] = []

    def body(worker: int) -> None:
        assert clients[worker - 1].pull().kind is Kind.SAVE
        clients[worker - 1].send_state({"kept": kept(harness.memories[worker - 1])})

    together([lambda: states.extend(harness.server.save()), lambda: body(1), lambda: body(2)])
    assert [state["kept"].nonzero().flatten().tolist() for state in states] == [[1], [2]]
    assert harness.server.gradient_counts() == GradientCounts(
        asked=3, used=0, late=2, lost=1, under_way=0
    )


def test_where_all_die_in_a_step_there_are_too_few():
    harness = ServerHarness(workers=2, needed=2)
    harness.server.broadcast(1, torch.zeros(ENTRIES))
    for worker in (1, 2):
        killed(harness, worker)
    with pytest.raises(TooFewWorkers, match=r"worker \[1, 2\] of 2 died, which leaves 0"):
        harness.server.collect(harness.sum)


def test_nobody_waits_for_the_scale_that_a_dead_worker_would_ask_for():
    buckets = plan(PARAMETERS, make_codec("terngrad(scale=shared)"), megabytes(1.0))
    transports = network(3)
    server = Server(transports[0], buckets, 2, TIMEOUT_S)
    client = Client(transports[1], ENTRIES, Compressor(Residual(), RAW, 1, seed=0), TIMEOUT_S)
    out = torch.zeros(ENTRIES)

    def work() -> None:
        client.pull()
        client.begin(buckets)
        client.push(buckets[0], torch.ones(ENTRIES))
        client.flush()
        client.report(REPORT)

    server.broadcast(1, torch.zeros(ENTRIES))
    transports[2].exit_rank(137)
    together([work, lambda: server.collect(out)], lambda: transports[0].abort(1))
    assert bool(out.any())


def scheduled(seed: int) -> tuple[ServerHarness, int]:
    """Returns a job and its number of steps; some of its workers die, each after a number of
    messages.
    """
    dice = random.Random(seed)
    workers, steps = dice.randint(2, 5), dice.randint(2, 6)
    harness = ServerHarness(workers, needed=dice.randint(1, workers), relays=dice.random() < 0.5)
    doomed = dice.sample(range(workers), dice.randint(1, workers - 1))
    for worker in doomed:
        breaths = dice.randint(0, 5 * steps)
        harness.ends[worker] = CrashingTransport(harness.transports[worker + 1], breaths)
    return harness, steps


def run_schedule(seed: int) -> ServerHarness:
    harness, steps = scheduled(seed)
    states: list[dict[str, Tensor]] = []

    def lead() -> None:
        for step in range(1, steps + 1):
            harness.step(step)
            if step % 2 == 0:
                harness.server.save()
        states.extend(harness.server.save())
        harness.end()

    bodies: list[Callable[[], None]] = [lead]
    bodies += [lambda w=w: harness.work(w) for w in range(1, len(harness.ends) + 1)]
    together(bodies, lambda: harness.transports[0].abort(1))
    return harness


@pytest.mark.parametrize(
    "seeds", [range(8), pytest.param(range(8, 32), marks=pytest.mark.slow)], ids=len
)
def test_whenever_workers_die_each_gradient_counts_once(seeds):
    """Gradients of workers that live are in steps or in the workers' memories."""
    for seed in seeds:
        harness = run_schedule(seed)
        assert harness.balanced(), (seed, harness.books)
        assert harness.books[-1][0].under_way == 0, seed
        for step in range(1, len(harness.books)):
            told = {sharing for (at, _), sharing in harness.shared.items() if at == step}
            assert len(told) <= 1, (seed, step, told)  # all divide images alike
        for worker in harness.server.workers:
            waits = float(kept(harness.memories[worker - 1])[worker])
            assert float(harness.given[worker]) + waits == harness.computed[worker - 1], seed
