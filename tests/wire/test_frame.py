"""Frames: a round trip changes nothing, and untrusted bytes are refused before any allocation."""

import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.draws import normal
from torch import Generator

from atomo.codecs import Field
from atomo.errors import ConfigError, FrameError
from atomo.wire import Compression, Flag, Header, Kind, pack, read_header, unpack
from atomo.wire.frame import CHECKSUM_AT, checksum

RAW = Compression(codec="none")
HEADER = Header(Kind.GRADIENT, step=7, worker=2, bucket=3, layout_hash=0xDEADBEEF, flags=Flag.LATE)


def fields_of(tensors: list[torch.Tensor]) -> list[Field]:
    return [Field(tensor.dtype, tuple(tensor.shape)) for tensor in tensors]


def reseal(frame: np.ndarray) -> np.ndarray:
    """Returns a changed frame with a checksum that matches."""
    struct.pack_into("<Q", frame.data, CHECKSUM_AT, checksum(frame))
    return frame


def decode(frame: np.ndarray, fields: list[Field]) -> list[torch.Tensor]:
    read_header(frame)
    return unpack(frame, fields)


@pytest.mark.parametrize("how", [RAW, Compression(), Compression("zstd", 3, "bit")], ids=str)
def test_round_trip(how):
    tensors = [
        normal(300, 5),
        normal(77).half(),
        normal(8, 9).bfloat16(),
        normal(3).double(),
        torch.arange(100),
        torch.zeros(0, 4),
        torch.tensor(1.5),
        torch.zeros(100_000),
        normal(4, 6).T,
    ]
    frame = pack(HEADER, tensors, how)
    assert read_header(frame) == HEADER
    for before, after in zip(tensors, unpack(frame, fields_of(tensors)), strict=True):
        assert after.equal(before)
        assert after.dtype == before.dtype


def test_compresses_only_where_it_pays():
    noise = torch.randint(0, 256, (100_000,), generator=Generator().manual_seed(0))
    assert pack(HEADER, [noise.to(torch.uint8)], Compression()).size > 100_000
    assert pack(HEADER, [torch.zeros(100_000)], Compression()).size < 4_000
    assert pack(HEADER, [normal(100_000)], Compression()).size > 400_000
    assert pack(HEADER, [normal(100_000)], Compression("zstd", 7)).size < 0.9 * 400_000


def test_a_header_is_small():
    assert pack(HEADER, [normal(2500)], RAW).size - 10_000 < 100


def test_every_single_bit_is_under_the_checksum():
    frame = pack(HEADER, [normal(10)], RAW)
    for position in range(8 * frame.size):
        damaged = frame.copy()
        damaged[position // 8] ^= 1 << position % 8
        with pytest.raises(FrameError):
            decode(damaged, [Field(torch.float32, (10,))])


def test_every_truncation_is_refused():
    frame = pack(HEADER, [normal(10)], RAW)
    for size in range(frame.size):
        with pytest.raises(FrameError):
            decode(frame[:size].copy(), [Field(torch.float32, (10,))])
        if size > CHECKSUM_AT + 8:
            with pytest.raises(FrameError):
                decode(reseal(frame[:size].copy()), [Field(torch.float32, (10,))])


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (Field(torch.float16, (10,)), "dtype"),
        (Field(torch.float32, (9,)), "at most"),
        (Field(torch.float32, (10, 1)), "dimensions"),
    ],
)
def test_another_layout_is_refused(field, message):
    with pytest.raises(FrameError, match=message):
        decode(pack(HEADER, [normal(10)], RAW), [field])


def test_another_number_of_sections_is_refused():
    with pytest.raises(FrameError, match="1 sections; 2 expected"):
        decode(pack(HEADER, [normal(10)], RAW), [Field(torch.float32, (10,))] * 2)


def test_another_version_says_so():
    frame = pack(HEADER, [], RAW)
    frame[4] = 9
    with pytest.raises(FrameError, match="version 9; this is version 1"):
        read_header(reseal(frame))


def test_a_compressed_section_that_claims_more_than_its_shape_is_refused():
    frame = pack(HEADER, [torch.zeros(1000)], Compression())
    honest = frame.copy()
    place = frame.size - struct.unpack_from("<I", frame[-100:].tobytes(), 0)[0] % 1  # the end
    body = bytes(frame)
    start = body.rindex(b"\x02\x01") if b"\x02\x01" in body else None
    assert start is not None
    assert place == frame.size
    struct.pack_into("<I", frame.data, start + 4, 1 << 30)  # blosc's count of bytes
    with pytest.raises(FrameError, match="claims"):
        decode(reseal(frame), [Field(torch.float32, (1000,))])
    assert decode(honest, [Field(torch.float32, (1000,))])[0].equal(torch.zeros(1000))


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    edits=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=8),
    compressed=st.booleans(),
)
def test_mutations_under_a_good_checksum_decode_within_bounds_or_are_refused(edits, compressed):
    tensors = [normal(40, 3), torch.zeros(500)]
    frame = pack(HEADER, tensors, Compression() if compressed else RAW)
    for position, value in edits:
        frame[position % frame.size] = value
    try:
        decoded = decode(reseal(frame), fields_of(tensors))
    except FrameError:
        return
    for before, after in zip(tensors, decoded, strict=True):
        assert after.numel() <= before.numel()


@settings(max_examples=200, deadline=None, derandomize=True)
@given(data=st.binary(max_size=200))
def test_noise_is_refused(data):
    with pytest.raises(FrameError):
        read_header(np.frombuffer(data, np.uint8))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"codec": "rar"}, "known: none"),
        ({"level": 10}, "0..9"),
        ({"shuffle": "riffle"}, "known: none, byte, bit"),
    ],
)
def test_bad_settings_name_the_bound(how, message):
    with pytest.raises(ConfigError, match=message):
        Compression(**how)
