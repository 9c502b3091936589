"""The same frames have the same sum in every bit, on every rank and in every order of arrival."""

import random
from collections.abc import Iterator, Sequence

import pytest
import torch
from torch import Size, Tensor

from atomo.codecs import make_codec
from atomo.exchange.collectives.collective import Addend, Collective
from atomo.exchange.compressor import BATCH, Compressor, add_frame, batch_of
from atomo.exchange.parameter_server.ordered_sum import OrderedSum
from atomo.exchange.reductions.allgather import Allgather
from atomo.fusion import Bucket, plan
from atomo.memory import NoMemory
from atomo.options.grouping import ONE
from atomo.wire import Bytes, Compression

PARAMETERS = [("w", Size((64, 48))), ("c", Size((8, 6, 3, 3))), ("b", Size((8,)))]
WORKERS = BATCH + 5  # the last batch is a smaller one
SHARE = 1 / WORKERS
RAW = Compression(codec="none")

pytestmark = pytest.mark.parametrize(
    "code", ["svd(rank=2)", "topk(ratio=0.1)", "dgc(ratio=0.1, values=fp16)", "qsgd"]
)


class Gathered(Collective):
    """All frames are there."""

    rank, size, wait_s = 0, WORKERS, 0.0

    def __init__(self, frames: Sequence[Bytes]) -> None:
        self.frames = frames

    def gather(self, data: Bytes, what: str) -> Iterator[Bytes]:
        return iter(self.frames)

    def swap(self, pieces: Sequence[Bytes], what: str) -> list[Bytes]:
        raise NotImplementedError

    def sum(self, addends: Sequence[Addend], what: str) -> None:
        raise NotImplementedError

    def broadcast(self, values: Tensor, what: str, root: int = 0) -> None:
        raise NotImplementedError

    def split(self, ranks: Sequence[int], *, one_host: bool) -> Collective:
        raise NotImplementedError


def sent(code: str) -> tuple[Bucket, dict[int, dict[int, Bytes]]]:
    """Returns a bucket, and the frames of each worker."""
    (bucket,) = plan(PARAMETERS, make_codec(code), ONE)
    frames = {}
    for worker in range(1, WORKERS + 1):
        flat = torch.randn(bucket.size, generator=torch.Generator().manual_seed(worker))
        frames[worker] = {0: Compressor(NoMemory(), RAW, worker, seed=1).compress(bucket, flat, 1)}
    return bucket, frames


def total_of(bucket: Bucket, frames: dict[int, dict[int, Bytes]], arrival: list[int]) -> Tensor:
    """Returns the sum of the frames when workers' frames arrive in the order `arrival`."""
    out, arrived = torch.ones(bucket.size), {worker: {} for worker in frames}
    total = OrderedSum([bucket], out, WORKERS, [SHARE])
    for worker in arrival:
        arrived[worker] = frames[worker]
        total.advance(bucket, arrived, sorted(frames))
    return out


@pytest.mark.slow(cases=("svd",))
def test_the_order_of_arrival_does_not_matter(code):
    bucket, frames = sent(code)
    first = total_of(bucket, frames, sorted(frames))
    for seed in range(3):
        arrival = random.Random(seed).sample(sorted(frames), WORKERS)
        assert total_of(bucket, frames, arrival).equal(first)


@pytest.mark.slow(cases=("svd",))
def test_a_follower_and_a_rank_without_master_have_the_bits_of_the_master(code):
    bucket, frames = sent(code)
    master = total_of(bucket, frames, sorted(frames))
    follower = torch.ones(bucket.size)
    OrderedSum([bucket], follower, WORKERS, [SHARE]).advance(bucket, frames, sorted(frames))
    assert follower.equal(master)
    gathered = Gathered([own[0] for own in frames.values()])
    compressor = Compressor(NoMemory(), RAW, 1, seed=1)
    rank = torch.zeros(bucket.size)
    reduction = Allgather(gathered, compressor)
    reduction.decode(bucket, reduction.exchange(bucket, frames[1][0], 1), 1, rank)
    assert rank.equal(master)


def test_it_is_the_sum_of_all(code):
    bucket, frames = sent(code)
    expected = torch.zeros(bucket.size)
    for own in frames.values():
        add_frame(bucket, own[0], expected, SHARE)
    torch.testing.assert_close(total_of(bucket, frames, sorted(frames)), expected)


def test_what_joins_nothing_is_decoded_as_it_arrives(code):
    bucket, _ = sent(code)
    assert batch_of(bucket, torch.device("cpu")) == (1 if code == "qsgd" else BATCH)
    assert batch_of(bucket, torch.device("cuda")) == BATCH
