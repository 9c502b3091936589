"""Several frames at once are read as each by itself, and refused as each by itself."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from atomo.codecs.base import Field
from atomo.errors import FrameError
from atomo.kernels import tables
from atomo.wire import Bytes, Compression, Header, Kind, Sections, pack, unpack
from atomo.wire.frame import as_bytes

FIELDS = (
    Field(torch.int64, (1,)),
    Field(torch.uint8, (300,)),
    Field(torch.float32, (200,)),
    Field(torch.float16, (6, 40), 120),
    Field(torch.float32, (3, 700)),
    Field(torch.bfloat16, ()),
    Field(torch.int8, (5,)),
)
FIXED = 32  # bytes in front of the table


def frame_of(seed: int, how: str = "lz4", description: bytes = b"") -> Bytes:
    """Builds a frame of these fields whose sizes and contents depend on a seed."""
    generator = torch.Generator().manual_seed(seed)
    odd = 2 * seed + 1  # an odd size, so that the next section is not aligned
    tensors = [
        torch.tensor([seed]),
        torch.randint(0, 256, (odd,), generator=generator).to(torch.uint8),
        torch.randn(seed % 4 * 50, generator=generator),
        torch.randn(3, seed, generator=generator).half(),
        torch.zeros(3, 600 + seed),  # which compresses
        torch.tensor(1.5).bfloat16(),
        torch.arange(5, dtype=torch.int8),
    ]
    return pack(Header(Kind.GRADIENT, 1, seed), tensors, Compression(how), description)


def check_alike(frames: list[Bytes]) -> None:
    """Checks that many frames at once give the tensors or the error of `unpack` for each."""
    expected, found = (
        outcome(lambda: [unpack(frame, FIELDS) for frame in frames]),
        outcome(lambda: Sections(FIELDS).unpack_all(frames)),
    )
    assert found == expected


def outcome(read: Callable[[], list[list[Tensor]]]) -> object:
    """Returns the tensors, bit by bit, or the error."""
    try:
        frames = read()
    except FrameError as error:
        return str(error)
    return [[(one.dtype, one.shape, as_bytes(one).tobytes()) for one in frame] for frame in frames]


def believed(frames: list[Bytes]) -> list[bool]:
    """Returns a mask of the frames that the kernel reads itself."""
    expected, room = Sections(FIELDS)._expected, 200
    heads = np.zeros((len(frames), room), np.uint8)
    for head, frame in zip(heads, frames, strict=True):
        head[: frame.size - FIXED] = frame[FIXED : FIXED + room]
    sizes = np.array([frame.size for frame in frames])
    return tables.find_sections(heads, sizes, expected, FIXED, 2**15).valid.tolist()


@pytest.mark.parametrize("how", ["none", "lz4"])
def test_frames_are_read_as_one_by_one(how):
    frames = [frame_of(seed, how) for seed in range(1, 9)]
    assert all(believed(frames))
    check_alike(frames)


def test_what_is_unusual_is_read_as_well():
    plain, told = frame_of(1), frame_of(2, description=b"who made it")
    fixed = frame_of(3)
    fixed.flags.writeable = False
    shifted = np.empty(plain.size + 1, np.uint8)[1:]
    shifted[:] = plain
    check_alike([plain, told, fixed, shifted])


def test_a_strange_table_is_refused_or_read_alike():
    """Changes each byte of the table and around it, and cuts frames short or extends them."""
    generator = torch.Generator().manual_seed(0)
    good, frame = frame_of(4), frame_of(5)
    end = FIXED + 60
    for at in range(FIXED, end):
        for _ in range(6):
            bad = frame.copy()
            value = torch.randint(0, 256, (2,), generator=generator).tolist()
            bad[at] = value[0]
            if at % 2:
                bad[at + 1] = value[1] | 0x80  # a longer integer
            check_alike([good, bad])
    for size in (FIXED, FIXED + 1, FIXED + 20, frame.size - 1):
        check_alike([good, frame[:size].copy()])
    check_alike([good, np.concatenate([frame, frame[:1]])])


def varint(value: int) -> bytes:
    return bytes([value & 0x7F | 0x80]) + varint(value >> 7) if value > 0x7F else bytes([value])


def refusal(most: tuple[int, ...], storage: int, sides: tuple[int, ...], stored: int) -> object:
    """Returns the outcome for frames with such a row: the same for two frames as for one."""
    fields = (Field(torch.float32, most), Field(torch.uint8, (4,)))
    row = bytes([0, storage, len(sides)]) + b"".join(map(varint, sides)) + varint(stored)
    table = bytes([0, 2]) + row + bytes([4, 0, 1, 4, 4])
    body = table + bytes(-(FIXED + len(table)) % 8) + bytes(4)
    frame = np.frombuffer(bytes(FIXED) + body, np.uint8).copy()
    said = outcome(lambda: Sections(fields).unpack_all([frame, frame]))
    assert said == outcome(lambda: [unpack(frame, fields)])
    return said


@pytest.mark.parametrize("number", [2**31, 2**58, 2**63 - 1])
def test_huge_numbers_are_refused_before_anything_is_allocated(number):
    for sides, stored in (((number, 1), 0), ((number, 0), number), ((1, 1), number)):
        for storage in (0, 1):
            assert isinstance(refusal((number, 2), storage, sides, stored), str)


def test_a_section_larger_than_what_is_stored_can_be_is_refused():
    assert "0 bytes claim to be 80" in refusal((10, 2), 1, (10, 2), 0)
