"""Chunks that ranks agree on, over threads."""

import pytest
import torch
from support.harness import together
from torch import Generator, Size, Tensor

from atomo.codecs import make_codec
from atomo.errors import CodecError, ConfigError
from atomo.exchange.collectives.direct import Direct
from atomo.exchange.compressor import Compressor
from atomo.exchange.reductions.allgather import Allgather
from atomo.exchange.reductions.chunked import Chunked
from atomo.fusion import Bucket, plan
from atomo.memory import Memory, make_memory
from atomo.options.grouping import ONE
from atomo.transports import network
from atomo.wire import Compression

PATIENCE_S = 600.0
CHUNK = 100
SHAPES = [("bias", Size([7])), ("one", Size([300, 100])), ("two", Size([95, 111]))]
CODE = f"chunktopk(ratio=0.05, chunk={CHUNK})"


def bucket_of(code: str = CODE) -> Bucket:
    (bucket,) = plan(SHAPES, make_codec(code), ONE)
    return bucket


class Ranks:
    """Threads with a way to average each."""

    def __init__(self, size: int, kind=Chunked, memory: str = "residual") -> None:
        self.bucket, self.transports = bucket_of(), network(size)
        self.memories = [make_memory(memory, workers=size) for _ in range(size)]
        self.ways = [
            kind(Direct(transport, PATIENCE_S),
                 Compressor(memory, Compression(), transport.rank + 1, 3))
            for transport, memory in zip(self.transports, self.memories, strict=True)
        ]  # fmt: skip

    def average(self, given: list[Tensor], step: int = 1) -> Tensor:
        outs = [torch.zeros(self.bucket.size) for _ in self.ways]

        def body(rank: int) -> None:
            encoded = self.ways[rank].encode(self.bucket, given[rank].clone(), step)
            received = self.ways[rank].exchange(self.bucket, encoded, step)
            self.ways[rank].decode(self.bucket, received, step, outs[rank])

        together([lambda rank=rank: body(rank) for rank in range(len(outs))])
        assert all(out.equal(outs[0]) for out in outs)
        return outs[0]


def gradients(size: int, step: int = 1) -> list[Tensor]:
    # Whole numbers: their sums are exact, in whatever order.
    draw = Generator().manual_seed(step)
    bucket = bucket_of()
    return [torch.randint(-9, 10, (bucket.size,), generator=draw).float() for _ in range(size)]


def norms_of(entries: Tensor) -> Tensor:
    return torch.stack([chunk.abs().sum() for chunk in entries.split(CHUNK)])


def held_in(memory: Memory, bucket: Bucket) -> Tensor:
    state = memory.state_dict()
    blank = [(slot.name, torch.zeros(slot.shape)) for slot in bucket.slots]
    return torch.cat([state.get(name, zeros).flatten() for name, zeros in blank])


@pytest.mark.slow
def test_it_is_the_paper_s_algorithm():
    """The chunks of the largest sums of norms, averaged; of each rank the rest is kept."""
    ranks, size = Ranks(3), 3
    kept = [torch.zeros(ranks.bucket.size) for _ in range(size)]
    for step in (1, 2, 3):
        given = gradients(size, step)
        wholes = [a + b for a, b in zip(given, kept, strict=True)]
        mean = sum(wholes) / size
        expected = torch.zeros_like(mean)
        for part in ranks.bucket.parts:
            sent = torch.zeros(ranks.bucket.size, dtype=torch.bool)
            sent[part.start : part.stop] = True
            if part.codec.id == "chunktopk":
                norms = sum(norms_of(whole[part.start : part.stop]) for whole in wholes)
                count = part.codec.max_count(part.stop - part.start)
                chosen = norms.sort(descending=True, stable=True).indices[:count]
                chunk = (torch.arange(ranks.bucket.size) - part.start) // CHUNK
                sent &= torch.isin(chunk, chosen)
            expected[sent] = mean[sent]
            for whole in wholes:
                whole[sent] = 0
        kept = wholes
        torch.testing.assert_close(ranks.average(given, step), expected, rtol=1e-6, atol=0)
        held = [held_in(memory, ranks.bucket) for memory in ranks.memories]
        assert all(a.equal(b) for a, b in zip(held, kept, strict=True))


def test_ranks_with_the_same_gradient_choose_as_each_alone():
    one = gradients(1)
    torch.testing.assert_close(
        Ranks(2).average(one * 2), Ranks(1, Allgather).average(one), rtol=0, atol=0
    )


def test_momentum_correction_goes_with_it():
    ranks, given = Ranks(2, memory="dgc"), gradients(2)
    first = ranks.average(given, 1)
    again = ranks.average(given, 2)
    assert bool(first.any())
    assert not again.equal(first)


@pytest.mark.slow
def test_bytes_do_not_grow_with_the_ranks():
    sent = {}
    for kind in (Chunked, Allgather):
        for size in (2, 4, 8):
            ranks = Ranks(size, kind)
            ranks.average(gradients(size))
            sent[kind, size] = max(one.sent_bytes for one in ranks.transports)
    chunks, most = -(-40545 // CHUNK), 21 * CHUNK + 7
    for size in (2, 4, 8):
        share = 2 * (size - 1) / size * 4 * (chunks + most)
        assert sent[Chunked, size] < 1.05 * share + 300 * 4 * size, (size, sent)
    assert sent[Allgather, 8] > 6 * sent[Allgather, 2]
    assert sent[Chunked, 8] < 2.5 * sent[Chunked, 2]


def test_a_gradient_that_is_not_finite_is_refused_by_all():
    ranks, given = Ranks(2), gradients(2)
    given[1][500] = torch.nan
    with pytest.raises(CodecError, match="chunktopk"):
        ranks.average(given)


def test_other_codecs_are_refused():
    with pytest.raises(ConfigError, match="give --code 'chunktopk"):
        Chunked.adapt_codec(make_codec("topk"))
    assert Chunked.adapt_codec(make_codec("sgd")) == make_codec("sgd")
