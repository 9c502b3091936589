"""Payloads that lie, of every family of codecs: indices, counts, sizes and numbers. Each lie is
refused as what it is, by the one who sent it.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from support.lockstep_server import RAW, LockstepServer, tamper
from torch import Size, Tensor

from atomo.codecs import CODECS, make_codec
from atomo.errors import FrameError, FrameFault
from atomo.exchange import Compressor, GradientCounts
from atomo.exchange.compressor import add_frame
from atomo.fusion import Bucket, plan
from atomo.kernels import rice
from atomo.memory import Residual
from atomo.options.grouping import ONE
from atomo.wire import Bytes, pack, read_header, unpack

SHAPE = Size((40, 50))
SIZE = 2000
# A count, indices, values.
SPARSE = ("topk", "threshold", "chunktopk", "tiletopk", "dgc", "dragonn", "rows")
SAMPLES = {"entrywise": 0, "fourier": 0, "atomo": 3}  # by which section a sample begins
SEEDED = ("randk", "countsketch")

Change = Callable[[list[Tensor]], None]


def some(codes: Iterable[str], *quick: str) -> list[Any]:
    """Returns all codes as parameters of a test; only the quick ones run by default."""
    return [pytest.param(one, marks=() if one in quick else pytest.mark.slow) for one in codes]


def framed(code: str) -> tuple[Bucket, Bytes]:
    """Returns a bucket of one parameter, and a frame of it."""
    bucket = plan([("w", SHAPE)], make_codec(code), ONE)[0]
    gradient = torch.randn(SIZE, generator=torch.Generator().manual_seed(1))
    return bucket, Compressor(Residual(), RAW, 1, seed=0).compress(bucket, gradient, 1)


def fault_of(code: str, change: Change) -> FrameFault:
    """Returns the fault for which a frame with changed sections is refused; the sum
    stays finite.
    """
    bucket, frame = framed(code)
    out = torch.zeros(SIZE)
    add_frame(bucket, changed(bucket, frame, lambda sections: None), out, 1.0)  # valid unchanged
    with pytest.raises(FrameError) as refused:
        add_frame(bucket, changed(bucket, frame, change), out, 1.0)
    return refused.value.fault


def changed(bucket: Bucket, frame: Bytes, change: Change) -> Bytes:
    sections = [section.clone() for section in unpack(frame, bucket.fields)]
    change(sections)
    return pack(read_header(frame), sections, RAW)


def entries_of(code: str) -> int:
    """Among how many places those of a codec are."""
    if code == "chunktopk":
        return make_codec(code).chunks(SIZE)  # type: ignore[attr-defined]
    return SHAPE[0] if code == "rows" else SIZE


@pytest.mark.parametrize("code", some(SPARSE, "topk"))
def test_indices_that_cannot_be_are_refused(code):
    entries = entries_of(code)

    def with_two(first: int, second: int) -> Change:
        def do(sections: list[Tensor]) -> None:
            sections[0].fill_(2)
            sections[1] = rice.encode(torch.tensor([first, second]), entries)

        return do

    def with_count(count: int) -> Change:
        return lambda sections: sections[0].fill_(count)

    # Gaps begin at 1: the code cannot express a repeated or a smaller index.
    for two in ((1, entries), (5, 5), (7, 3)):
        assert fault_of(code, with_two(*two)) is FrameFault.INDICES, two
    for count in (-1, 0, entries + 1, 2**62):
        assert fault_of(code, with_count(count)) is FrameFault.INDICES, count


@pytest.mark.parametrize("code", some(SAMPLES, "entrywise"))
def test_atoms_that_cannot_be_or_come_twice_are_refused(code):
    first = SAMPLES[code]

    def with_two(one: int, other: int) -> Change:
        def do(sections: list[Tensor]) -> None:
            sections[first][1] = 2
            sections[first + 1] = rice.encode(torch.tensor([one, other]), 128 * SIZE)
            sections[first + 2] = torch.zeros(1, dtype=torch.uint8)

        return do

    def both(sections: list[Tensor]) -> None:
        """Repeats an index: a drawn one is among the certain ones as well."""
        drawn = rice.decode(sections[first + 1], int(sections[first][1]), SIZE)
        sections[first][2] = 1
        sections[first + 4] = rice.encode(drawn[:1], SIZE)
        sections[first + 5] = torch.ones(1)

    for two in ((1, 64 * SIZE), (5, 5), (7, 3)):
        assert fault_of(code, with_two(*two)) is FrameFault.INDICES, two
    assert fault_of(code, both) is FrameFault.INDICES
    for place in (0, 1, 2):
        assert fault_of(code, lambda s, at=place: s[first][at].add_(8)) is FrameFault.PAYLOAD
        assert fault_of(code, lambda s, at=place: s[first][at].fill_(-9)) is FrameFault.PAYLOAD


def test_a_sketch_whose_places_cannot_be_is_refused():
    def places(sections: list[Tensor]) -> None:
        sections[0][1] = 1
        sections[1] = rice.encode(torch.tensor([SIZE]), SIZE + 1)

    assert fault_of("sketchml", places) is FrameFault.INDICES
    assert fault_of("sketchml", lambda sections: sections[0].fill_(SIZE + 1)) is FrameFault.INDICES


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("code", some(CODECS, "topk", "qsgd"))
def test_one_number_that_is_none_is_refused_by_the_sum(code, value):
    """Whichever it is: a decoder may let it through, and then the sum tells, unless nothing in it
    is of that number, as of a mean that no entry has.
    """
    bucket, frame = framed(code)
    sound = torch.zeros(SIZE)
    add_frame(bucket, frame, sound, 1.0)
    for number, section in enumerate(unpack(frame, bucket.fields)):
        if not (section.is_floating_point() and section.numel()):
            continue

        def change(sections: list[Tensor], at: int = number) -> None:
            sections[at].view(-1)[:1].fill_(value)

        out, fault = torch.zeros(SIZE), None
        try:
            add_frame(bucket, changed(bucket, frame, change), out, 1.0)
        except FrameError as error:
            fault = error.fault
        assert fault in (FrameFault.NUMBERS, None)
        assert fault or not bool(out.isfinite().all()) or out.equal(sound)


@pytest.mark.parametrize("code", some(SEEDED))
def test_a_seed_of_its_own_costs_the_liar_alone_where_all_share_one(code):
    """Sums of such frames share one set of indices. A worker with another seed affects no other
    worker.
    """
    lockstep = LockstepServer(code)

    def another(frame: Bytes, of: Bucket) -> list[Bytes]:
        return [changed(of, frame, lambda sections: sections[0].add_(1))]

    tamper(lockstep, another, at=len(lockstep.buckets) - 1)
    assert lockstep.step(1) == [1, 3]
    assert lockstep.server.gradient_counts() == GradientCounts(
        3, 2, 0, 0, 1, 0, ((2, FrameFault.PAYLOAD),)
    )
