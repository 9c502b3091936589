"""Workers that repeat the master's steps, one message at a time: late ones, and wrong ones."""

from pathlib import Path

import numpy as np
import pytest
import torch
from support.harness import settings, together
from torch import Size, Tensor

from atomo.codecs import make_codec
from atomo.exchange import Client, Compressor, Follower, Report, Server
from atomo.exchange.parameter_server.frames.messages import (
    RAW,
    read_update,
    update_frame,
)
from atomo.exchange.parameter_server.weight_sync import (
    UpdateSync,
)
from atomo.exchange.parameter_server.weight_sync.ski_rental import SkiRental
from atomo.fusion import Bucket, plan
from atomo.memory import NoMemory
from atomo.options.grouping import megabytes
from atomo.training.optim.learning_rate import LearningRate
from atomo.training.optim.optimizer import FlatOptimizer
from atomo.transports import network
from atomo.wire import Header, Kind, pack, read_header

PARAMETERS = [("w", Size((40, 30))), ("b", Size((40,)))]
ENTRIES = 1240
REPORT = Report(1.0, 2.0, 3.0, 0.1, 0.2, 0.3, 0.4)
GOLDEN = Path(__file__).parents[2] / "wire" / "golden" / "update.frame"
TIMEOUT_S = 600.0  # only a hang takes as long


class MasterAndFollowers:
    """A master and the workers that follow it, run step by step from the test's own thread."""

    def __init__(
        self, tmp_path, workers: int, needed: int, code: str = "sgd", chooses: bool = False
    ) -> None:
        self.buckets = plan(PARAMETERS, make_codec(code), megabytes(0.004))
        self.settings = settings(tmp_path, momentum=0.9, n=workers + 1)
        self.transports = network(workers + 1)
        self.master = self.replica()
        self.down = UpdateSync(self.master.state_dict, chooses)
        self.server = Server(self.transports[0], self.buckets, needed, TIMEOUT_S, self.down)
        self.replicas = [self.replica() for _ in range(workers)]
        self.kinds: list[list[Kind]] = [[] for _ in range(workers)]
        self.clients = [self.client(rank) for rank in range(1, workers + 1)]
        self.step = 0

    def replica(self) -> FlatOptimizer:
        weights = torch.arange(ENTRIES) / 1000
        return FlatOptimizer(weights, self.buckets, self.settings, LearningRate(self.settings))

    def client(self, rank: int) -> Client:
        transport = self.transports[rank]
        receive = transport.receive

        def noted(*arguments: object):
            message = receive(*arguments)
            self.kinds[rank - 1].append(read_header(message.data).kind)
            return message

        transport.receive = noted
        mine = self.replicas[rank - 1]
        follower = Follower(
            mine.weights, lambda _: mine, lambda _: self.buckets, rank, len(self.replicas)
        )
        compressor = Compressor(NoMemory(), RAW, rank, seed=0)
        return Client(transport, ENTRIES, compressor, TIMEOUT_S, follower=follower)

    def open(self) -> None:
        if not self.step:
            self.meet()
        self.step += 1
        self.server.broadcast(self.step, self.master.weights)

    def meet(self) -> None:
        """Asks for the hashes of the initial weights, and hears them from in between."""
        for worker, client in enumerate(self.clients, 1):
            frame = self.down.initial_query(worker, self.master.weights)[0]
            answer = client._follower.hash(read_header(frame).step)
            self.down.on_hash(worker, answer)

    def work(self, worker: int, step: int) -> None:
        """Runs one step of a worker, which first gets the master's weights."""
        client = self.clients[worker - 1]
        order = client.pull()
        assert order.step == step
        assert order.weights is not None
        self.answer(worker, step)

    def answer(self, worker: int, step: int) -> None:
        client = self.clients[worker - 1]
        client.begin(self.buckets)
        for bucket in self.buckets:
            client.push(bucket, gradient(worker, step, bucket))
        client.flush()
        client.report(REPORT)

    def close(self) -> list[int]:
        counted = self.server.collect(self.master.gradient)
        self.master.step(self.step, 0.5)
        self.server.commit(0.5)
        return list(counted)

    def is_like_the_master(self, worker: int) -> bool:
        mine = self.replicas[worker - 1]
        mine_state, state = mine.state_dict(), self.master.state_dict()
        return bool(mine.weights.equal(self.master.weights)) and all(
            mine_state[name].equal(tensor) for name, tensor in state.items()
        )


def gradient(worker: int, step: int, bucket: Bucket) -> Tensor:
    seed = 100 * worker + 10 * step + bucket.number
    return torch.randn(bucket.size, generator=torch.Generator().manual_seed(seed))


def test_a_worker_that_was_late_learns_what_it_missed_in_order(tmp_path):
    cast = MasterAndFollowers(tmp_path, workers=3, needed=2, code="topk(ratio=0.05)")
    cast.open()
    for worker in (1, 2):
        cast.work(worker, 1)
    assert cast.close() == [1, 2]
    for step in (2, 3):
        cast.open()
        for worker in (1, 2):
            cast.work(worker, step)
        assert cast.close() == [1, 2]
    cast.work(3, 1)  # arrives during the next step
    cast.open()
    for worker in (1, 2):
        cast.work(worker, 4)
    assert cast.close() == [1, 2]
    cast.clients[2].pull()  # the updates of steps 1 to 3, and the order to compute step 4
    update = [Kind.GRADIENT] * 2 * len(cast.buckets) + [Kind.UPDATE]
    assert cast.kinds[2] == [Kind.BEGIN, *3 * update, Kind.BEGIN]
    cast.open()
    cast.clients[0].pull()
    assert cast.is_like_the_master(1)


def test_who_missed_more_than_a_snapshot_gets_one(tmp_path):
    cast = MasterAndFollowers(tmp_path, workers=3, needed=2)
    for step in (1, 2, 3):
        cast.open()
        for worker in (1, 2):
            cast.work(worker, step)
        cast.close()
    cast.work(3, 1)
    cast.open()
    for worker in (1, 2):
        cast.work(worker, 4)
    cast.close()
    assert cast.clients[2].pull().step == 4
    assert cast.kinds[2] == [Kind.BEGIN, Kind.SNAPSHOT, Kind.BEGIN]
    cast.answer(3, 4)
    cast.open()
    for worker in (1, 2):
        cast.work(worker, 5)
    cast.close()
    cast.open()
    cast.work(1, 6)
    cast.work(3, 5)  # it repeated step 4, in which it did not count
    cast.work(2, 6)
    cast.close()
    cast.open()
    cast.clients[0].pull()
    assert cast.is_like_the_master(1)


def take_steps(cast: MasterAndFollowers, steps: int, begin: int = 1) -> None:
    """Runs steps to which all workers contribute."""
    for step in range(begin, begin + steps):
        cast.open()
        for worker in range(1, len(cast.clients) + 1):
            cast.work(worker, step)
        cast.close()


def test_the_order_of_ranks_is_kept_and_so_is_the_factor(tmp_path):
    cast = MasterAndFollowers(tmp_path, workers=3, needed=3, code="fp16")
    take_steps(cast, 3)
    cast.open()
    for client in cast.clients:
        client.pull()
    assert all(cast.is_like_the_master(worker) for worker in (1, 2, 3))


@pytest.mark.parametrize("times", [1, 2])
def test_weights_that_differ_are_reported_and_healed(tmp_path, monkeypatch, times):
    monkeypatch.setattr("atomo.exchange.parameter_server.weight_sync.weight_hashes.CHECK_EVERY", 2)
    cast = MasterAndFollowers(tmp_path, workers=2, needed=2)
    for time in range(times):
        while cast.step < 2 * time + 2:
            take_steps(cast, 1, begin=cast.step + 1)
        cast.replicas[1].weights[7] += 1e-3
        take_steps(cast, 1, begin=cast.step + 1)
    told = [note for note in cast.down.notes if "worker 2 had other weights" in note]
    assert len(told) == len(cast.down.notes) == times
    assert "after step 2" in told[0]
    cast.open()
    assert cast.clients[1].pull().weights.equal(cast.master.weights)
    cast.clients[0].pull()
    assert cast.is_like_the_master(1)
    if times == 1:
        assert cast.is_like_the_master(2)
        assert cast.kinds[1][-2:] == [Kind.SNAPSHOT, Kind.BEGIN]
    else:
        assert "all weights at every step from now on" in told[1]
        assert cast.kinds[1][-1] is Kind.WEIGHTS


def test_who_built_other_weights_is_sent_the_masters(tmp_path):
    cast = MasterAndFollowers(tmp_path, workers=2, needed=2)
    cast.replicas[0].weights += 1
    cast.open()
    assert cast.clients[0].pull().weights.equal(cast.master.weights)
    cast.clients[1].pull()
    assert cast.kinds == [[Kind.SNAPSHOT, Kind.BEGIN], [Kind.BEGIN]]
    assert "worker 1 built other initial weights" in cast.down.notes[0]


def test_the_end_is_compared_as_well(tmp_path):
    cast = MasterAndFollowers(tmp_path, workers=2, needed=2)
    take_steps(cast, 3)
    cast.replicas[1].weights[7] += 1e-3

    def worker(number: int) -> None:
        client = cast.clients[number - 1]
        assert client.pull().kind is Kind.SAVE
        client.send_state({})

    together([cast.server.save, lambda: worker(1), lambda: worker(2)])
    assert ["after step 3" in note and "worker 2" in note for note in cast.down.notes] == [True]


def test_rent_is_paid_until_it_would_have_bought():
    rent = SkiRental()
    assert [rent.should_keep(3, 1, 5) for _ in range(4)] == [True, True, False, True]
    assert all(rent.should_keep(1, 3, 5) for _ in range(100))
    assert rent.should_keep(6, 1, 5)  # a cheap step pays for no later one
    assert not rent.should_keep(2, 1, 5)


def test_a_hash_that_nobody_asked_for_is_refused(tmp_path):
    cast = MasterAndFollowers(tmp_path, workers=2, needed=2)
    cast.open()
    frame = pack(Header(Kind.HASH, 0, 1), [torch.zeros(8, dtype=torch.uint8)], RAW)
    cast.transports[1].send(0, frame, "a hash")
    cast.work(2, 1)
    assert [*cast.server.collect(cast.master.gradient)] == [2]
    (note,) = cast.server.take_notes()
    assert "worker 1 sent a hash of version 0; due: None" in note


def test_an_update_of_an_earlier_version_reads_the_same():
    frame = np.frombuffer(GOLDEN.read_bytes(), np.uint8)
    assert read_header(frame) == Header(Kind.UPDATE, 7)
    assert read_update(frame, 3) == ([1, 3], 0.25, [])
    assert frame.tobytes() == update_frame(7, [1, 3], 0.25).tobytes()
    assert read_update(update_frame(7, [1, 3], 0.25, [0.5]), 3) == ([1, 3], 0.25, [0.5])
