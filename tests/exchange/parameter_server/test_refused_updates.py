"""Updates, gradients and differences that do not fit a follower's weights are refused."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from exchange.parameter_server.test_followers import ENTRIES, GOLDEN, PARAMETERS
from support.harness import settings
from torch import Tensor

from atomo.codecs import make_codec
from atomo.errors import FrameError
from atomo.exchange import DifferenceCoder, Follower
from atomo.exchange.parameter_server.frames.messages import (
    RAW,
    begin_frame,
    hash_order,
    snapshot_frame,
)
from atomo.exchange.parameter_server.weight_sync import (
    CountedStep,
    DeltaSync,
    add_difference,
)
from atomo.fusion import Bucket, plan
from atomo.options.grouping import ONE, megabytes
from atomo.training.optim.learning_rate import LearningRate
from atomo.training.optim.optimizer import FlatOptimizer
from atomo.wire import Bytes, Compression, Flag, Header, Kind, pack, read_header


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
    worker, buckets, replica = follower(tmp_path)
    frames = [gradient_frame(buckets[0]) if isinstance(frame, str) else frame for frame in frames]
    with pytest.raises(FrameError, match=message):
        follow(worker, frames)
    assert not replica.weights.any()


def follow(worker: Follower, frames: Sequence[Bytes]) -> None:
    """Has a follower handle frames from the master."""
    for frame in frames:
        header = read_header(frame)
        match header.kind:
            case Kind.BEGIN:
                worker.weights_for(header.step)
            case Kind.HASH:
                worker.hash(header.step)
            case _:
                worker.apply(header, frame)


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
    worker, buckets, _ = follower(tmp_path)
    frame = gradient_frame(buckets[0], **header)
    with pytest.raises(FrameError, match=message):
        worker.apply(read_header(frame), frame)


def moved(buckets: Sequence[Bucket], number: int = 0, version: int = 1) -> Bytes:
    """Returns the difference of one bucket of weights, from 0 to 1."""
    bucket = buckets[number]
    ones = torch.ones(bucket.size)
    return DifferenceCoder(RAW, seed=1).frame(bucket, ones, torch.zeros(bucket.size), version)


DIFFERENCES = plan(PARAMETERS, make_codec("topk(ratio=0.05)"), megabytes(0.0001))
OTHERS = plan(PARAMETERS, make_codec("topk(ratio=0.1)"), megabytes(0.0001))


@pytest.mark.parametrize(
    ("differences", "message"),
    [
        ([(DIFFERENCES, 0, 2)], "a difference to version 2 came; .* of version 0"),
        ([(DIFFERENCES, 0, 0)], "a difference to version 0 came"),
        ([(DIFFERENCES, 1, 1)], "bucket 1 came; 0 is due"),
        ([(DIFFERENCES, 0, 1), (DIFFERENCES, 0, 1)], "bucket 0 came; 1 is due"),
        (
            [(DIFFERENCES, 0, 1), (DIFFERENCES, 1, 1), (DIFFERENCES, 0, 1)],
            "to version 1 came",
        ),
        ([(DIFFERENCES, 0, 1), (OTHERS, 1, 1)], "bucket 1: another layout"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_differences_that_do_not_lead_on_are_refused(differences, message):
    with pytest.raises(FrameError, match=message):
        follow(differences_follower(), [moved(*difference) for difference in differences])


def test_a_step_that_begins_between_two_differences_is_refused():
    frames = [moved(DIFFERENCES), begin_frame(2, Flag.NONE)]
    with pytest.raises(FrameError, match="of version 0, 1 buckets further"):
        follow(differences_follower(), frames)


def differences_follower() -> Follower:
    """Returns a worker with two buckets of weights of version 0."""
    assert len(DIFFERENCES) == 2
    return Follower(
        torch.zeros(ENTRIES), no_optimizer, lambda _: DIFFERENCES, 1, 3, differences=DIFFERENCES
    )


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
    weights_of_workers = [torch.zeros(ENTRIES) for _ in range(2)]
    workers = [
        Follower(replica, no_optimizer, lambda _: buckets, rank, 2, differences=buckets)
        for rank, replica in enumerate(weights_of_workers, 1)
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
            assert weights_of_workers[0].equal(weights_of_workers[1])
        assert not weights_of_workers[0].equal(weights)
    assert kinds == [[*8 * [Kind.DELTA], Kind.BEGIN], [Kind.SNAPSHOT, Kind.BEGIN]]
    final_frames = down.checkpoint_frames([1, 2])
    for rank, worker in enumerate(workers, 1):
        follow(worker, final_frames[rank])
        assert weights_of_workers[rank - 1].equal(weights)


def test_damaged_optimizers_are_refused(tmp_path):
    worker, _, replica = follower(tmp_path)
    sections = [torch.ones(ENTRIES), torch.ones(9, dtype=torch.uint8)]
    frame = pack(Header(Kind.SNAPSHOT, 1), sections, Compression("none"))
    with pytest.raises(FrameError, match="a state is damaged"):
        worker.apply(read_header(frame), frame)
    assert not replica.weights.any()
