"""Frames: the only bytes that ranks exchange, and that `atomo.encode` returns.

    offset  bytes
    0       4      magic "ATMO"
    4       1      version
    5       1      kind
    6       2      flags
    8       8      step
    16      2      worker: the rank that the gradient, state or verdict is about
    18      2      bucket
    20      4      layout: a hash of the codecs and shapes that both ends agreed on, or 0
    24      8      checksum: xxh3-64 of everything but these 8 bytes
    32      ...    description: its length, then that many bytes
            ...    section table: the number of sections, then for each
                     dtype, storage, number of dimensions, dimensions, stored bytes
            0..7   zeros, up to a multiple of 8
            ...    sections, one after the other

Fixed integers are little-endian, the others varints. `unpack` trusts no byte: it checks
everything against the layout that the caller expects before it allocates anything.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from torch import Tensor

from atomo.codecs.base import Field
from atomo.core.devices import to_host
from atomo.errors import FrameError, FrameFault
from atomo.wire.compression import Bytes, Compression, compress, decompress_into
from atomo.wire.cursor import Cursor, varint
from atomo.wire.kinds import Flag, Kind
from atomo.wire.sections import DTYPES, Section, read_table, write_row

__all__ = [
    "Header",
    "as_bytes",
    "claimed_kind",
    "pack",
    "pack_bytes",
    "pack_pieces",
    "read_header",
    "unpack",
]

MAGIC: Final = b"ATMO"
VERSION: Final = 1
FIXED: Final = struct.Struct("<4sBBHQHHIQ")
KIND_AT: Final = 5
CHECKSUM_AT: Final = 24
ALIGNMENT: Final = 8
# As numpy calls DTYPES; it has no bfloat16.
NUMBERS: Final = dict(
    zip(DTYPES, ("f4", "f2", "i2", "f8", "u1", "i1", "i2", "i4", "i8"), strict=True)
)


@final
@dataclass(frozen=True)
class Header:
    """The fixed part of a frame."""

    kind: Kind
    step: int = 0
    worker: int = 0
    bucket: int = 0
    layout_hash: int = 0
    flags: Flag = Flag.NONE


def pack(
    header: Header, tensors: Sequence[Tensor], how: Compression, description: bytes = b""
) -> Bytes:
    """Packs `tensors`, which may be on any device, into a frame."""
    rows, bodies = sections_of(tensors, how)
    return seal(header, table_of(rows, description), bodies, sum(body.size for body in bodies))


def pack_bytes(
    header: Header, tensors: Sequence[Tensor], how: Compression, description: bytes = b""
) -> bytes:
    """Packs the frame of `pack` as immutable bytes."""
    rows, bodies = sections_of(tensors, how)
    # Hashed where they lie: `bytes` are written once, when all of them are known.
    head = head_of(header, table_of(rows, description), bodies)
    return b"".join([head, *(body.data for body in bodies)])


def sections_of(tensors: Sequence[Tensor], how: Compression) -> tuple[list[bytes], list[Bytes]]:
    """Returns the section table's row of each tensor, and its bytes as they are stored."""
    raw = [as_bytes(tensor) for tensor in to_host(tensors)]
    stored = [compress(r, t.dtype.itemsize, how) for r, t in zip(raw, tensors, strict=True)]
    bodies = [plain if small is None else small for plain, small in zip(raw, stored, strict=True)]
    rows = [
        write_row(tensor.dtype, tensor.shape, body.size, small is not None)
        for tensor, body, small in zip(tensors, bodies, stored, strict=True)
    ]
    return rows, bodies


def head_of(header: Header, table: bytes, bodies: Iterable[Bytes]) -> bytes:
    """Returns the bytes before the sections, with the checksum over the whole frame."""
    head = np.empty(FIXED.size + len(table), np.uint8)
    write_fixed(header, head)
    head[FIXED.size :] = np.frombuffer(table, np.uint8)
    struct.pack_into("<Q", head.data, CHECKSUM_AT, checksum(head, *bodies))
    return head.tobytes()


def write_fixed(header: Header, frame: Bytes) -> None:
    """Writes the fixed part of a frame, with a checksum of 0."""
    FIXED.pack_into(
        frame.data, 0, MAGIC, VERSION, header.kind, header.flags, header.step, header.worker,
        header.bucket, header.layout_hash, 0,
    )  # fmt: skip


def pack_pieces(header: Header, pieces: Iterable[Bytes], size: int) -> Bytes:
    """Packs a frame with one uncompressed section of bytes, which is given in pieces.

    Each piece is copied once, so that a caller may produce one piece after the other.
    """
    row = write_row(torch.uint8, (size,), size, False)
    return seal(header, table_of([row], b""), pieces, size)


def table_of(rows: Sequence[bytes], description: bytes) -> bytes:
    """Returns the bytes between the fixed part of a frame and its sections."""
    table = varint(len(description)) + description + varint(len(rows)) + b"".join(rows)
    # The first section begins at a multiple of 8: where it is stored as it is, the reader's tensor
    # is a view of the frame. Others begin where the one before ends, and may have to be copied.
    return table + bytes(-(FIXED.size + len(table)) % ALIGNMENT)


def seal(header: Header, table: bytes, bodies: Iterable[Bytes], size: int) -> Bytes:
    """Puts the parts of a frame, of which bodies have `size` bytes in all, one after the other, and
    the checksum over them.
    """
    frame = np.empty(FIXED.size + len(table) + size, np.uint8)
    write_fixed(header, frame)
    position = FIXED.size
    for body in (np.frombuffer(table, np.uint8), *bodies):
        frame[position : position + body.size] = body
        position += body.size
    # Last, over all of it: the header too must not be believed where a bit of it has flipped.
    struct.pack_into("<Q", frame.data, CHECKSUM_AT, checksum(frame))
    return frame


def checksum(frame: Bytes, *parts: Bytes) -> int:
    """Hashes all bytes of a frame but the checksum itself; the frame may be in several parts."""
    digest = xxhash.xxh3_64(frame[:CHECKSUM_AT].data)
    digest.update(frame[CHECKSUM_AT + 8 :].data)
    for part in parts:
        digest.update(part.data)
    return digest.intdigest()


def read_header(frame: Bytes) -> Header:
    """Reads the fixed part of a frame, after a check of the checksum.

    Raises:
        FrameError: these bytes are no frame, are of another version, or were damaged on the way.
    """
    if frame.size < FIXED.size:
        raise FrameError(
            f"a frame of {frame.size} bytes; the shortest has {FIXED.size}", FrameFault.DAMAGED
        )
    magic, version, kind, flags, step, worker, bucket, layout, claimed = FIXED.unpack_from(
        frame.data
    )
    if magic != MAGIC:
        raise FrameError(
            f"not a frame: it begins with {magic.hex()}, not {MAGIC.hex()}", FrameFault.DAMAGED
        )
    if version != VERSION:
        raise FrameError(
            f"a frame of version {version}; this is version {VERSION}", FrameFault.STRANGE
        )
    if claimed != checksum(frame):
        raise FrameError(
            "the frame was damaged on the way: its checksum does not match", FrameFault.DAMAGED
        )
    if kind not in Kind.__members__.values() or flags not in (Flag.NONE, Flag.LATE):
        raise FrameError(f"a frame of unknown kind {kind} or flags {flags}", FrameFault.STRANGE)
    return Header(Kind(kind), step, worker, bucket, layout, Flag(flags))


def claimed_kind(frame: Bytes) -> int:
    """Returns the kind that a frame claims, unchecked, without a pass over the frame; 0 for no
    kind.
    """
    return int(frame[KIND_AT]) if frame.size >= FIXED.size else 0


def unpack(frame: Bytes, fields: Sequence[Field], most_bytes: int | None = None) -> list[Tensor]:
    """Unpacks the tensors of a frame that `read_header` accepted. They may share its memory.

    Args:
        frame: the whole of it.
        fields: expected dtype and bounds of each section.
        most_bytes: of all sections, once they are decompressed; None: as `fields` allow.

    Raises:
        FrameError: the sections are not as `fields` declares them, or larger than `most_bytes`;
            nothing was allocated for them.
    """
    _, cursor = read_description(frame)
    table = read_table(cursor, fields)
    # Everything is checked by the table alone, before a byte of any section is looked at.
    size = sum(section.size for section in table)
    if most_bytes is not None and size > most_bytes:
        raise FrameError(f"sections of {size} bytes; at most {most_bytes} accepted")
    cursor.take(-cursor.position % ALIGNMENT)
    bodies = [cursor.take(section.stored) for section in table]
    if cursor.position != frame.size:
        raise FrameError(f"{frame.size - cursor.position} bytes after the end of the frame")
    return [restore(section, body) for section, body in zip(table, bodies, strict=True)]


def read_description(frame: Bytes) -> tuple[Cursor, Cursor]:
    """Returns a cursor on the description of a frame and a cursor on the section table after it."""
    cursor = Cursor(frame.data)
    cursor.take(FIXED.size)
    description = cursor.take(cursor.varint())
    return Cursor(description), cursor


def restore(section: Section, body: memoryview) -> Tensor:
    """Returns the tensor of one section, read-only; a view of the frame where that is possible."""
    if not section.size:
        return torch.empty(section.shape, dtype=section.dtype)
    tensor = torch.from_numpy(entries_of(section, body))
    if tensor.dtype is not section.dtype:
        tensor = tensor.view(section.dtype)
    return tensor if len(section.shape) == 1 else tensor.view(section.shape)


def entries_of(section: Section, body: memoryview) -> NDArray[Any]:
    """Returns aligned, writeable entries, which are all that torch can share."""
    numbers = NUMBERS[section.dtype]
    if section.compressed:
        raw = np.empty(section.size, np.uint8)
        decompress_into(body, raw)
        return raw.view(numbers)
    stored = np.frombuffer(body, numbers)
    if not stored.flags.aligned:
        return stored.copy()
    return stored if stored.flags.writeable else np.asarray(Shared(stored))


@final
class Shared:
    """Read-only array that claims to be writeable, so that torch accepts it. Sections are never
    written to.
    """

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array  # keeps the memory alive
        address, _ = array.__array_interface__["data"]
        self.__array_interface__ = {**array.__array_interface__, "data": (address, False)}


def as_bytes(tensor: Tensor) -> Bytes:
    """Returns the bytes of a tensor, without a copy if it is contiguous and on the CPU."""
    flat = tensor.detach().cpu().contiguous().flatten()
    array: Bytes = flat.view(torch.uint8).numpy() if flat.numel() else np.empty(0, np.uint8)
    return array
