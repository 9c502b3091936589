"""Workers that die or hang at any moment: the step goes on with those that are left, each gradient
counts once, and the sum of what became of them is what was asked for.
"""

import random
from collections.abc import Callable

import pytest
import torch
from mortal import Mortal
from support import together
from torch import Size, Tensor

from atomo.codecs import make_codec
from atomo.communicators import Balance, Client, Compressor, Report, Server
from atomo.communicators.parameter_server.down import Weights
from atomo.errors import DeadlineExpired, PeerLost, TooFewWorkers
from atomo.fusion import plan
from atomo.grouping import megabytes
from atomo.memory import Residual
from atomo.transports import Transport, network
from atomo.wire import Bytes, Compression, Kind

PARAMETERS = [("w", Size((4, 3))), ("b", Size((4,)))]
ENTRIES = 16
RAW = Compression(codec="none")
TIMEOUT_S = 600.0  # only a hang takes as long
REPORT = Report(1.0, 2.0, 3.0, 0.1, 0.2, 0.3, 0.4)
ASKED_TO_COMPUTE = (Kind.WEIGHTS, Kind.BEGIN)


class Troupe:
    """A server, and workers whose gradient is 1 in the entry of their rank and 0 elsewhere."""

    def __init__(
        self,
        workers: int,
        needed: int,
        least: int = 1,
        timeout_s: float = TIMEOUT_S,
        relays: bool = False,
    ):
        self.buckets = plan(PARAMETERS, make_codec("sgd"), megabytes(20e-6))  # two
        self.transports = network(workers + 1)
        self.ends: list[Transport] = [*self.transports[1:]]
        down = Weights(relays)
        self.server = Server(
            self.transports[0], self.buckets, needed, timeout_s, down, late_counts=True, least=least
        )
        self.memories = [Residual() for _ in range(workers)]
        self.computed = [0] * workers
        self.shared: dict[int, set[tuple[int, ...]]] = {}  # by step
        self.sum = torch.zeros(ENTRIES)
        self.given = torch.zeros(ENTRIES)  # whole gradients that went into steps, by rank
        self.books: list[tuple[Balance, int]] = []

    def client(self, worker: int) -> Client:
        compressor = Compressor(self.memories[worker - 1], RAW, worker, seed=0)
        return Client(self.ends[worker - 1], ENTRIES, compressor, TIMEOUT_S)

    def answer(self, client: Client, worker: int, buckets: int = 2) -> None:
        """The gradient of one step; a part of it, if only so many buckets are sent."""
        client.begin(self.buckets)
        for bucket in self.buckets[:buckets]:
            whole = torch.zeros(ENTRIES)
            whole[worker] = 1.0
            client.push(bucket, whole[bucket.offset : bucket.offset + bucket.size].clone())
        if buckets == len(self.buckets):
            self.computed[worker - 1] += 1
            client.flush()
            client.report(REPORT)

    def work(self, worker: int) -> None:
        """A worker from its first order to its last, or to its death."""
        client = self.client(worker)
        try:
            while (order := client.pull()).kind is not Kind.STOP:
                if order.kind is Kind.SAVE:
                    client.send_state({"kept": kept(self.memories[worker - 1])})
                elif order.kind in ASKED_TO_COMPUTE:
                    self.shared.setdefault(order.step, set()).add(order.workers)
                    self.answer(client, worker)
        except PeerLost as lost:
            if lost.rank != worker:  # a worker hears of no death but its own
                raise

    def step(self, step: int) -> list[int]:
        """The master's part; the ranks that counted."""
        self.server.broadcast(step, torch.full((ENTRIES,), float(step)))
        counted = [*self.server.collect(self.sum)]
        taken = self.server._taken
        self.server.took(1.0)
        share = (taken and taken.share) or 1 / len(self.ends)
        self.given += (self.sum / share).round()
        self.books.append((self.server.balance(), len(counted)))
        return counted

    def balanced(self) -> bool:
        """Whether what was asked for is what it came to, step by step."""
        under_way = 0
        for book, used in self.books:
            if book.used != used:
                return False
            if under_way + book.asked != book.used + book.late + book.lost + book.under_way:
                return False
            under_way = book.under_way
        return True


def kept(memory: Residual) -> Tensor:
    """What a memory has, in the order of the entries."""
    state = memory.state_dict()
    return torch.cat(
        [state.get(name, torch.zeros(shape)).flatten() for name, shape in reversed(PARAMETERS)]
    )


def killed(troupe: Troupe, worker: int) -> None:
    troupe.transports[worker].leave(137)


def test_a_step_goes_on_with_those_who_are_left():
    troupe = Troupe(workers=3, needed=3)
    one, _, three = (troupe.client(worker) for worker in (1, 2, 3))
    troupe.server.broadcast(1, torch.zeros(ENTRIES))
    for worker, client in ((1, one), (3, three)):
        assert client.pull().workers == (1, 2, 3)
        troupe.answer(client, worker)
    killed(troupe, 2)
    assert [*troupe.server.collect(troupe.sum)] == [1, 3]
    assert troupe.sum.tolist()[:4] == [0.0, 0.5, 0.0, 0.5]
    assert troupe.server.balance() == Balance(asked=3, used=2, late=0, lost=1, under_way=0)
    told = troupe.server.take_notes()
    assert len(told) == 1
    assert "worker 2 is gone; 2 of 3 workers go on" in told[0]
    troupe.server.broadcast(2, torch.zeros(ENTRIES))
    assert [client.pull().workers for client in (one, three)] == [(1, 3), (1, 3)]


def test_what_a_dead_worker_sent_of_a_gradient_is_taken_out_of_the_sum():
    troupe = Troupe(workers=2, needed=2)
    clients = [troupe.client(1), troupe.client(2)]
    troupe.server.broadcast(1, torch.zeros(ENTRIES))
    for worker, client in enumerate(clients, 1):
        client.pull()
        troupe.answer(client, worker, buckets=1)  # by now the master may add up the first
    killed(troupe, 1)
    troupe.answer(clients[1], 2)
    assert [*troupe.server.collect(troupe.sum)] == [2]
    assert troupe.sum.nonzero().flatten().tolist() == [2]
    assert float(troupe.sum[2]) == 1.0


def test_a_gradient_that_was_complete_counts_though_its_worker_is_dead_by_then():
    troupe = Troupe(workers=2, needed=2)
    clients = [troupe.client(1), troupe.client(2)]
    troupe.server.broadcast(1, torch.zeros(ENTRIES))
    for worker, client in enumerate(clients, 1):
        client.pull()
        troupe.answer(client, worker)
    killed(troupe, 1)
    assert [*troupe.server.collect(troupe.sum)] == [1, 2]
    assert troupe.server.balance() == Balance(asked=2, used=2, late=0, lost=0, under_way=0)


def test_a_silent_worker_is_killed_once_its_time_is_up():
    troupe = Troupe(workers=2, needed=2, timeout_s=0.05)
    one = troupe.client(1)
    troupe.server.broadcast(1, torch.zeros(ENTRIES))
    one.pull()
    troupe.answer(one, 1)
    assert [*troupe.server.collect(troupe.sum)] == [1]
    told = " ".join(troupe.server.take_notes())
    assert "worker 2 did not answer for 0.05 s, the --timeout, and was killed" in told
    with pytest.raises(PeerLost, match="rank 2 is gone"):  # a zombie that wakes is heard no more
        troupe.transports[2].send(0, one_byte(), "a word")


def one_byte() -> Bytes:
    return torch.zeros(1, dtype=torch.uint8).numpy()


def test_where_all_are_silent_nobody_is_killed():
    troupe = Troupe(workers=2, needed=2, timeout_s=0.05)
    troupe.server.broadcast(1, torch.zeros(ENTRIES))
    with pytest.raises(DeadlineExpired, match=r"gradients of worker \[1, 2\] at step 1"):
        troupe.server.collect(troupe.sum)
    assert troupe.server.workers == (1, 2)


def test_too_few_end_the_run_and_take_back_what_never_counts():
    troupe = Troupe(workers=3, needed=3, least=3)
    clients = [troupe.client(worker) for worker in (1, 2, 3)]
    troupe.server.broadcast(1, torch.zeros(ENTRIES))
    for worker in (1, 2):
        clients[worker - 1].pull()
        troupe.answer(clients[worker - 1], worker)
    killed(troupe, 3)
    with pytest.raises(TooFewWorkers, match=r"worker \[3\] of 3 died, which leaves 2; --min-w"):
        troupe.server.collect(troupe.sum)
    states: list[dict[str, Tensor]] = []

    def body(worker: int) -> None:
        assert clients[worker - 1].pull().kind is Kind.SAVE
        clients[worker - 1].send_state({"kept": kept(troupe.memories[worker - 1])})

    together([lambda: states.extend(troupe.server.save()), lambda: body(1), lambda: body(2)])
    assert [state["kept"].nonzero().flatten().tolist() for state in states] == [[1], [2]]
    assert troupe.server.balance() == Balance(asked=3, used=0, late=2, lost=1, under_way=0)


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
    transports[2].leave(137)
    together([work, lambda: server.collect(out)], lambda: transports[0].abort(1))
    assert bool(out.any())


def scheduled(seed: int) -> tuple[Troupe, int]:
    """A troupe of which some die, each after so many messages; and how many steps it takes."""
    dice = random.Random(seed)
    workers, steps = dice.randint(2, 5), dice.randint(2, 6)
    troupe = Troupe(workers, needed=dice.randint(1, workers), relays=dice.random() < 0.5)
    doomed = dice.sample(range(workers), dice.randint(1, workers - 1))
    for worker in doomed:
        breaths = dice.randint(0, 5 * steps)
        troupe.ends[worker] = Mortal(troupe.transports[worker + 1], breaths)
    return troupe, steps


def played(seed: int) -> Troupe:
    troupe, steps = scheduled(seed)
    states: list[dict[str, Tensor]] = []

    def lead() -> None:
        for step in range(1, steps + 1):
            troupe.step(step)
            if step % 2 == 0:
                troupe.server.save()
        states.extend(troupe.server.save())
        troupe.server.stop()
        troupe.books.append((troupe.server.balance(), 0))

    bodies: list[Callable[[], None]] = [lead]
    bodies += [lambda w=w: troupe.work(w) for w in range(1, len(troupe.ends) + 1)]
    together(bodies, lambda: troupe.transports[0].abort(1))
    return troupe


@pytest.mark.parametrize(
    "seeds", [range(12), pytest.param(range(12, 60), marks=pytest.mark.slow)], ids=len
)
def test_whenever_workers_die_each_gradient_counts_once(seeds):
    """What the living computed is in steps or in their memories."""
    for seed in seeds:
        troupe = played(seed)
        assert troupe.balanced(), (seed, troupe.books)
        assert troupe.books[-1][0].under_way == 0, seed
        for step, told in troupe.shared.items():
            assert len(told) == 1, (seed, step, told)  # all share the images of a step alike
        for worker in troupe.server.workers:
            waits = float(kept(troupe.memories[worker - 1])[worker])
            assert float(troupe.given[worker]) + waits == troupe.computed[worker - 1], seed
