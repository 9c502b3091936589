"""The section table of a frame: a description of each section, checked before use.

A row is the dtype (its index in DTYPES), the storage of the section (0: plain, 1: blosc), the
number of dimensions, the dimensions, and the bytes stored. The sender may be untrusted.
"""

import math
from collections.abc import Sequence
from operator import le
from typing import Final, NamedTuple, final

import torch

from atomo.codecs.base import Field
from atomo.errors import FrameError
from atomo.wire.compression import MOST_GAIN
from atomo.wire.cursor import Cursor, varint

__all__ = ["DTYPES", "MOST_DIMENSIONS", "Section", "read_table", "write_row"]

# Their places are bytes of frames: new ones go to the end.
DTYPES: Final = (
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float64,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
)
MOST_DIMENSIONS: Final = 16


@final
class Section(NamedTuple):
    """One row of the section table."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    size: int  # bytes once decompressed. A Python integer: hostile ones cannot overflow
    stored: int  # bytes
    compressed: bool


def write_row(dtype: torch.dtype, shape: Sequence[int], stored: int, compressed: bool) -> bytes:
    """Encodes one row of the section table."""
    head = bytes([DTYPES.index(dtype), compressed, len(shape)])
    return head + b"".join(map(varint, shape)) + varint(stored)


def read_table(cursor: Cursor, fields: Sequence[Field]) -> list[Section]:
    """Reads the section table, and checks it against `fields`."""
    count = cursor.varint()
    if count != len(fields):
        raise FrameError(f"{count} sections; {len(fields)} expected")
    return [read_row(cursor, number, field) for number, field in enumerate(fields)]


def read_row(cursor: Cursor, number: int, field: Field) -> Section:
    """Reads one row; a master reads thousands of rows a step, most of them with the faster loop in
    C.
    """
    code, storage, ndim = cursor.take(3)
    if code >= len(DTYPES) or DTYPES[code] != field.dtype:
        raise FrameError(f"section {number}: dtype code {code}; {field.dtype} expected")
    sides = len(field.max_shape)
    if storage > 1 or ndim != sides or ndim > MOST_DIMENSIONS:
        raise FrameError(
            f"section {number}: storage {storage}, {ndim} dimensions; {sides} expected"
        )
    shape = tuple([cursor.varint() for _ in range(ndim)])
    if not all(map(le, shape, field.max_shape)):
        raise FrameError(f"section {number}: shape {shape}; at most {field.max_shape} expected")
    entries = math.prod(shape)
    if field.max_entries is not None and entries > field.max_entries:
        raise FrameError(f"section {number}: shape {shape}; at most {field.max_entries} entries")
    section = Section(
        field.dtype, shape, entries * field.dtype.itemsize, cursor.varint(), bool(storage)
    )
    check_size(number, section)
    return section


def check_size(number: int, section: Section) -> None:
    """Raises FrameError if the size of a section differs from its row."""
    _, _, size, stored, compressed = section
    if not compressed and stored != size:
        raise FrameError(f"section {number}: {stored} bytes stored for {size}")
    # A gain that no compressor reaches would only cause a large allocation: refused before any.
    if size > MOST_GAIN * stored:
        raise FrameError(f"section {number}: {stored} bytes claim to be {size}")
