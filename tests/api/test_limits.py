"""Limits on the cost of an untrusted frame: memory and work are bounded before either is spent."""

import struct
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Generator, Size, Tensor

import atomo
from atomo.api.description import Description, write_description
from atomo.api.limits import MOST_BYTES, PER_TENSOR, WORK_PER_BYTE, WORK_PER_ENTRY, Limits
from atomo.codecs import CODECS, make_codec
from atomo.errors import FrameError
from atomo.wire import Compression, Header, Kind, pack
from atomo.wire.cursor import varint
from atomo.wire.frame import CHECKSUM_AT, checksum

ZSTD = Compression("zstd", 9)  # which makes a gigabyte of zeros of 60 kilobytes
HIGH_WATER = Path("/proc/self/clear_refs")


def frame(spec: str, shapes: list[tuple[int, ...]], sections: list[Tensor]) -> bytes:
    """Builds a frame with these contents, even if `encode` would not."""
    tensors = tuple((torch.float32, Size(shape)) for shape in shapes)
    about = Description(make_codec(spec), False, tensors)
    return pack(Header(Kind.TENSORS), sections, ZSTD, write_description(about)).tobytes()


def nothing_of(spec: str, shape: tuple[int, ...]) -> list[Tensor]:
    """Returns the sections of a gradient of zeros."""
    codec = make_codec(spec)
    return codec.sections(codec.encode(torch.zeros(shape), Generator().manual_seed(0)))


def octets(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.uint8)


@cache
def full_rank() -> bytes:
    """Builds a frame of 20 kB that asks for 2^36 multiply-adds."""
    side = torch.zeros(4096, 4096)
    return frame("svd", [(4096, 4096)], [side, side])


@cache
def coded_full_rank() -> bytes:
    """Builds a short frame that asks for as many: both factors are top-k's, without entries."""
    spec = "topk(ratio=1.0)"
    head = [torch.tensor([4096, 4096], dtype=torch.int32), torch.ones(1)]
    factor = [torch.tensor([0]), octets(), torch.zeros(0)]
    return frame(f"svd(factors={spec})", [(4096, 4096)], [*head, *factor, *factor])


@cache
def long_side() -> bytes:
    """Builds a shape of which each reading allows one of the sizes, but none allows both."""
    left, right = torch.zeros(0, 128), torch.zeros(128, 2**16)
    return frame("svd(matricisation=auto)", [(1, 256, 256)], [left, right])


@cache
def many_cosines() -> bytes:
    """Builds a frame in which every coefficient was drawn, in blocks of a thousand."""
    n = 2**22
    counts = torch.tensor([n, n, 0], dtype=torch.int32)
    # Rice codes of no gaps: a parameter of 5 zeros every 512, then ones.
    bits = torch.ones(n // 512, 517, dtype=torch.uint8)
    bits[:, :5] = 0
    weights = 2 ** torch.arange(8)
    places = (bits.view(-1, 8).long() * weights).sum(1).to(torch.uint8)
    signs = torch.zeros(n // 8, dtype=torch.uint8)
    parts = [counts, places, signs, torch.ones(1), octets(), torch.zeros(0)]
    return frame("fourier(block=1024)", [(n,)], parts)


@cache
def nested_values() -> bytes:
    """Builds nested codecs, each of which claims that all of its entries were sent."""
    n, depth = 2**22, 6
    bits = torch.ones(n // 512, 517, dtype=torch.uint8)
    bits[:, :5] = 0
    places = (bits.view(-1, 8).long() * 2 ** torch.arange(8)).sum(1).to(torch.uint8)
    spec = "topk(ratio=1.0)"
    for _ in range(depth):
        spec = f"topk(ratio=1.0, values={spec})"
    return frame(spec, [(n,)], [torch.tensor([n]), places] * (depth + 1) + [torch.zeros(n)])


@cache
def many_tensors() -> bytes:
    return frame("sgd", [(1,)] * (MOST_BYTES // PER_TENSOR.room + 1), [])


HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "full rank": (full_rank, "visits of entries"),
    "coded full rank": (coded_full_rank, "visits of entries"),
    "one long side": (long_side, "at most 65536 entries"),
    "many cosines": (many_cosines, "visits of entries"),
    "nested values": (nested_values, "bytes of memory"),
    "many tensors": (many_tensors, "tensors; at most"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_a_frame_that_asks_for_more_than_it_is_worth_is_refused(name):
    make, message = HOSTILE[name]
    with pytest.raises(FrameError, match=message):
        atomo.decode(make())


def test_a_chunk_longer_than_its_tensor_is_no_longer_than_that():
    """Checks the bound: else 2^20 indices were made for each of these, one after the other."""
    spec = "chunktopk(ratio=1.0, chunk=1048576)"
    tensors = [torch.full((1,), float(number)) for number in range(100)]
    decoded = atomo.decode(atomo.encode(tensors, spec, seed=0), most_bytes=2**22)
    assert [float(tensor) for tensor in decoded] == [float(tensor) for tensor in tensors]


def test_a_few_bytes_that_claim_to_be_many_megabytes_are_refused_unread():
    assert not atomo.decode(frame("sgd", [(2**20,)], [torch.zeros(2**20)]))[0].any()
    raw = Compression("none")
    short = pack(Header(Kind.TENSORS), [torch.zeros(64)], raw, described("sgd", 2**24))
    data = as_compressed(short.tobytes(), 64, 2**24)
    with pytest.raises(FrameError, match="256 bytes claim to be 67108864"):
        atomo.decode(data)


def described(spec: str, entries: int) -> bytes:
    return write_description(
        Description(make_codec(spec), True, ((torch.float32, Size([entries])),))
    )


def as_compressed(data: bytes, entries: int, claimed: int) -> bytes:
    """Returns the frame with its one section marked as compressed, and of `claimed` entries."""
    plain = bytes([0, 0, 1]) + varint(entries) + varint(4 * entries)
    assert data.count(plain) == 1
    start = data.index(plain)
    table = data[32:start] + bytes([0, 1, 1]) + varint(claimed) + varint(4 * entries)
    body = bytearray(data[:32] + table + bytes(-(32 + len(table)) % 8) + bytes(4 * entries))
    array = np.frombuffer(body, np.uint8)
    struct.pack_into("<Q", body, CHECKSUM_AT, checksum(array))
    return bytes(body)


def test_the_limits_are_the_callers():
    data = atomo.encode(torch.ones(1000), "sgd", seed=0)
    room = 4000 + 4000 + PER_TENSOR.room  # the result, and the section that it is read from
    assert atomo.decode(data, most_bytes=room).equal(torch.ones(1000))
    with pytest.raises(FrameError, match="sections of 4000 bytes; at most 3999"):
        atomo.decode(data, most_bytes=room - 1)
    result = 4000 + PER_TENSOR.room
    with pytest.raises(FrameError, match=f"up to {result} bytes of memory; at most {result - 1}"):
        atomo.decode(data, most_bytes=result - 1)


def test_work_is_bounded_by_the_entries_allowed_and_by_the_bytes_that_came():
    side = torch.zeros(256, 256)
    data = frame("svd", [(256, 256)], [side, side])
    work = 4 * 2**16 + 256 * 2**16 // 16 + PER_TENSOR.work
    minimum = -(-(work - WORK_PER_BYTE * len(data)) // WORK_PER_ENTRY)
    assert minimum <= 2**16  # the frame's own size accounts for most of it
    limits = Limits(2**16, MOST_BYTES, len(data))
    assert limits.work >= work
    assert Limits(2**16, MOST_BYTES, 0).work < work


@pytest.mark.slow(cases=("zeros",))
@pytest.mark.parametrize("code", [*CODECS, "topk(values=qsgd)", "svd(factors=topk(ratio=0.5))"])
@pytest.mark.parametrize("kind", ["noise", "zeros", "half zeros"])
def test_every_honest_gradient_is_far_within_the_limits(code, kind):
    noise = torch.randn(256, 256, generator=Generator().manual_seed(0))
    tensor = {"noise": noise, "zeros": 0 * noise, "half zeros": noise.relu()}[kind]
    data = atomo.encode(tensor, code, seed=0)
    # 16 times less than the default: the ratio of MOST_ENTRIES to MOST_BYTES is 1 to 16.
    assert atomo.decode(data, most_entries=2**16, most_bytes=2**22).shape == tensor.shape


@pytest.mark.slow(cases=("fourier",))
@pytest.mark.parametrize("code", ["fourier(block=1024)", "qsgd"])
def test_a_list_of_many_small_tensors_is_within_the_limits(code):
    tensors = [torch.ones(3, 3)] * 400
    assert len(atomo.decode(atomo.encode(tensors, code, seed=0))) == 400


@pytest.mark.slow
@pytest.mark.skipif(not HIGH_WATER.exists(), reason="the system tells no high-water mark")
@pytest.mark.parametrize(
    "code", [*CODECS, "topk(ratio=1.0)", "entrywise(budget=0.99)", "randk(ratio=1.0)"]
)
def test_no_more_memory_is_used_than_was_reckoned_with(code, monkeypatch):
    reckoned = []
    within = Limits.within_bytes
    monkeypatch.setattr(
        Limits, "within_bytes", lambda self, needed: reckoned.append(needed) or within(self, needed)
    )
    noise = torch.randn(1024, 1024, generator=Generator().manual_seed(0)).relu()
    data = atomo.encode(noise, code, seed=0)
    atomo.decode(data)  # compiles, and fills caches
    before = status("VmRSS")
    HIGH_WATER.write_text("5")
    decoded = atomo.decode(data)
    assert status("VmHWM") - before <= max(reckoned) + 2**21  # a little goes to the allocator
    assert decoded.shape == noise.shape


def status(name: str) -> int:
    """Bytes of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(name)).split()[1])


SMALL = """
import resource, sys
from pathlib import Path
import atomo
from atomo.errors import FrameError

decode = atomo.decode  # imports PyTorch, which needs more room than this leaves
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, used + 2**30))
resource.setrlimit(resource.RLIMIT_CPU, (30, 30))
for path in sys.argv[1:]:
    try:
        decode(Path(path).read_bytes())
    except FrameError:
        continue
    sys.exit(path)
"""


@pytest.mark.slow
def test_hostile_frames_are_refused_in_little_room_and_time(tmp_path):
    paths = [tmp_path / str(number) for number in range(len(HOSTILE))]
    for path, (make, _) in zip(paths, HOSTILE.values(), strict=True):
        path.write_bytes(make())
    command = [sys.executable, "-c", SMALL, *paths]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
