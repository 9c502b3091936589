"""Workers that repeat the master's steps, one message at a time: late ones, and wrong ones."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from support.harness import settings, together
from torch import Size, Tensor

from atomo.codecs import make_codec
from atomo.errors import FrameError
from atomo.exchange import Client, Compressor, DifferenceCoder, Follower, Report, Server
from atomo.exchange.parameter_server.frames.messages import (
    RAW,
    begin_frame,
    hash_order,
    read_update,
    snapshot_frame,
    update_frame,
)
from atomo.exchange.parameter_server.weight_sync import (
    CountedStep,
    DeltaSync,
    UpdateSync,
    add_difference,
)
from atomo.exchange.parameter_server.weight_sync.ski_rental import SkiRental
from atomo.fusion import Bucket, plan
from atomo.memory import NoMemory
from atomo.options.grouping import ONE, megabytes
from atomo.training.optim.learning_rate import LearningRate
from atomo.training.optim.optimizer import FlatOptimizer
from atomo.transports import network
from atomo.wire import Bytes, Compression, Flag, Header, Kind, pack, read_header

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


def follower(tmp_path) -> tuple[Follower, Sequence[Bucket], FlatOptimizer]:
    buckets = plan(PARAMETERS, make_codec("sgd"), ONE)
    chosen = settings(tmp_path)
    replica = FlatOptimizer(torch.zeros(ENTRIES), buckets, chosen, LearningRate(chosen))
    return Follower(replica.weights, lambda _: replica, lambda _: buckets, 1, 3), buckets, replica


def gradient_frame(of: Bucket, step: int = 1, worker: int = 2, **header: int) -> Bytes:
    known = {"bucket": 0, "layout_hash": of.layout_hash} | header
    tensors = [torch.zeros(1200), torch.zeros(40)]
    return pack(Header(Kind.GRADIENT, step, worker, **known), tensors, RAW)


def update(
    factors: Sequence[float] = (1.0,), counted: Sequence[int] = (2,), step: int = 1
) -> Bytes:
    sections = [
        torch.tensor(factors, dtype=torch.float64),
        torch.tensor(counted, dtype=torch.int32),
    ]
    return pack(Header(Kind.UPDATE, step), sections, RAW)


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        ([update([])], r"factors \[\]"),
        ([update([0.0])], "above 0 and at most 1"),
        ([update([float("nan")])], "above 0 and at most 1"),
        ([update([1.5])], "above 0 and at most 1"),
        ([update(counted=[])], r"ranks in 1..3"),
        ([update(counted=[3, 2])], r"ranks in 1..3"),
        ([update(counted=[2, 2])], r"ranks in 1..3"),
        ([update(counted=[0])], r"ranks in 1..3"),
        ([update(counted=[4])], r"ranks in 1..3"),
        ([update(counted=[1, 2, 3, 4])], "at most"),
        ([update(step=2)], "an update of step 2 came; the weights are of version 0"),
        ([update()], r"with the gradients of \[2\]; arrived: those of \{\}"),
        ([update(counted=[1])], r"with the gradients of \[1\]"),  # its own, which it never made
        (["gradient", update(counted=[3])], r"arrived: those of \{2: 1\}"),
        (["gradient", "gradient"], "came twice"),
        ([snapshot_frame(5, torch.zeros(ENTRIES - 1), {})], "1239 weights came"),
        ([snapshot_frame(5, torch.zeros(ENTRIES), {"exp_avg/w": torch.zeros(2)})], "exp_avg"),
        ([begin_frame(2, Flag.NONE)], "step 2 was commanded, and the weights are of version 0"),
        ([hash_order(3)], "hash of version 3 was asked for"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_does_not_lead_on_is_refused_and_changes_nothing(tmp_path, frames, message):
    one, buckets, replica = follower(tmp_path)
    frames = [gradient_frame(buckets[0]) if isinstance(frame, str) else frame for frame in frames]
    with pytest.raises(FrameError, match=message):
        follow(one, frames)
    assert not replica.weights.any()


def follow(one: Follower, frames: Sequence[Bytes]) -> None:
    """Has a follower handle frames from the master."""
    for frame in frames:
        header = read_header(frame)
        match header.kind:
            case Kind.BEGIN:
                one.weights_for(header.step)
            case Kind.HASH:
                one.hash(header.step)
            case _:
                one.apply(header, frame)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"step": 2}, "a gradient of step 2 came; the weights are of version 0"),
        ({"bucket": 1}, "another layout"),
        ({"layout_hash": 5}, "another layout"),
    ],
    ids=str,
)
def test_a_gradient_of_another_step_or_layout_is_refused(tmp_path, header, message):
    one, buckets, _ = follower(tmp_path)
    frame = gradient_frame(buckets[0], **header)
    with pytest.raises(FrameError, match=message):
        one.apply(read_header(frame), frame)


def moved(buckets: Sequence[Bucket], number: int = 0, version: int = 1) -> Bytes:
    """Returns the difference of one bucket of weights, from 0 to 1."""
    bucket = buckets[number]
    ones = torch.ones(bucket.size)
    return DifferenceCoder(RAW, seed=1).frame(bucket, ones, torch.zeros(bucket.size), version)


DIFFERENCES = plan(PARAMETERS, make_codec("topk(ratio=0.05)"), megabytes(0.0001))
OTHERS = plan(PARAMETERS, make_codec("topk(ratio=0.1)"), megabytes(0.0001))


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        ([moved(DIFFERENCES, version=2)], "a difference to version 2 came; .* of version 0"),
        ([moved(DIFFERENCES, version=0)], "a difference to version 0 came"),
        ([moved(DIFFERENCES, 1)], "bucket 1 came; 0 is due"),
        ([moved(DIFFERENCES), moved(DIFFERENCES)], "bucket 0 came; 1 is due"),
        ([moved(DIFFERENCES), moved(DIFFERENCES, 1), moved(DIFFERENCES)], "to version 1 came"),
        ([moved(DIFFERENCES), moved(OTHERS, 1)], "bucket 1: another layout"),
        ([moved(DIFFERENCES), begin_frame(2, Flag.NONE)], "of version 0, 1 buckets further"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_differences_that_do_not_lead_on_are_refused(tmp_path, frames, message):
    weights = torch.zeros(ENTRIES)
    one = Follower(weights, no_optimizer, lambda _: DIFFERENCES, 1, 3, differences=DIFFERENCES)
    assert len(DIFFERENCES) == 2
    with pytest.raises(FrameError, match=message):
        follow(one, frames)


def no_optimizer(weights: Tensor) -> FlatOptimizer:
    raise AssertionError("differences need none")


def test_a_difference_from_another_base_is_refused():
    frame = moved(DIFFERENCES, version=1)
    with pytest.raises(
        FrameError, match=r"from version \[0\] arrived; the weights are of version 3"
    ):
        add_difference(DIFFERENCES[0], frame, torch.zeros(DIFFERENCES[0].size), 3)


def test_a_difference_of_an_earlier_version_reads_the_same():
    bucket = DIFFERENCES[1]
    frame = np.frombuffer(GOLDEN.with_name("delta.frame").read_bytes(), np.uint8)
    out = torch.zeros(bucket.size)
    add_difference(bucket, frame, out, 6)
    assert read_header(frame) == Header(Kind.DELTA, 7, 0, 1, bucket.layout_hash)
    assert out.sum() == 60  # a twentieth of 1200


def ordered(down: DeltaSync, worker: int) -> list[Bytes]:
    """Returns the frames that a worker receives to compute the open step."""
    return [frame for to, frame in down.commands({worker: Flag.NONE}) if to == worker]


def test_who_missed_differences_gets_them_in_order_or_all_weights(tmp_path):
    buckets = plan(PARAMETERS, make_codec("topk(ratio=0.05)"), megabytes(0.0001))
    down, weights = DeltaSync(buckets, DifferenceCoder(RAW, seed=1)), torch.zeros(ENTRIES)
    mine = [torch.zeros(ENTRIES) for _ in range(2)]
    workers = [
        Follower(own, no_optimizer, lambda _: buckets, rank, 2, differences=buckets)
        for rank, own in enumerate(mine, 1)
    ]
    down.open(1, weights)
    for rank, worker in enumerate(workers, 1):
        down.initial_query(rank, weights)
        follow(worker, ordered(down, rank)[:-1])
    kinds: list[list[Kind]] = []
    generator = torch.Generator().manual_seed(0)
    for step in range(1, 30):
        weights += torch.randn(ENTRIES, generator=generator)
        down.commit(CountedStep(step, {}, 1.0))
        down.open(step + 1, weights)
        follow(workers[0], ordered(down, 1))
        if step in (4, 29):  # the second was busy till then
            frames = ordered(down, 2)
            follow(workers[1], frames)
            kinds.append([read_header(frame).kind for frame in frames])
            assert mine[0].equal(mine[1])
        assert not mine[0].equal(weights)
    assert kinds == [[*8 * [Kind.DELTA], Kind.BEGIN], [Kind.SNAPSHOT, Kind.BEGIN]]
    final_frames = down.checkpoint_frames([1, 2])
    for rank, worker in enumerate(workers, 1):
        follow(worker, final_frames[rank])
        assert mine[rank - 1].equal(weights)


def test_damaged_optimizers_are_refused(tmp_path):
    one, _, replica = follower(tmp_path)
    sections = [torch.ones(ENTRIES), torch.ones(9, dtype=torch.uint8)]
    frame = pack(Header(Kind.SNAPSHOT, 1), sections, Compression("none"))
    with pytest.raises(FrameError, match="a state is damaged"):
        one.apply(read_header(frame), frame)
    assert not replica.weights.any()


def test_a_hash_that_nobody_asked_for_is_refused(tmp_path):
    cast = MasterAndFollowers(tmp_path, workers=2, needed=2)
    cast.open()
    frame = pack(Header(Kind.HASH, 0, 1), [torch.zeros(8, dtype=torch.uint8)], RAW)
    cast.transports[1].send(0, frame, "a hash")
    cast.work(2, 1)
    assert [*cast.server.collect(cast.master.gradient)] == [2]
    (told,) = cast.server.take_notes()
    assert "worker 1 sent a hash of version 0; due: None" in told


def test_an_update_of_an_earlier_version_reads_the_same():
    frame = np.frombuffer(GOLDEN.read_bytes(), np.uint8)
    assert read_header(frame) == Header(Kind.UPDATE, 7)
    assert read_update(frame, 3) == ([1, 3], 0.25, [])
    assert frame.tobytes() == update_frame(7, [1, 3], 0.25).tobytes()
    assert read_update(update_frame(7, [1, 3], 0.25, [0.5]), 3) == ([1, 3], 0.25, [0.5])
