"""Frames with a wrong structure and a valid checksum.

The first check rejects nearly every flipped bit. The mutations here keep the parts of a frame
consistent, or change both sides of a check: sections move from one codec's frame to another's,
tables have other shapes, counts in sections have boundary values, and codecs are nested.
"""

import math
import random
import struct
from dataclasses import dataclass, replace
from typing import Final

import blosc
import numpy as np

from atomo.wire.cursor import Cursor, string, varint
from atomo.wire.frame import CHECKSUM_AT, FIXED, checksum
from atomo.wire.sections import DTYPES

__all__ = ["Parts", "join", "mutant", "take_apart"]

KIND_AT: Final = 5
BOUNDED: Final = 2  # in the byte of a description's form
SIZES: Final = (0, 1, 2, 7, 64, 2**16, 2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 1)
COUNTS: Final = (0, 1, -1, 2, 5, 2**15, 2**31 - 1, -(2**31), 2**32, 2**63 - 1, -(2**63))
WRAPPERS: Final = (
    "topk(ratio=1.0, values={})", "threshold(values={})", "dgc(ratio=0.5, values={})",
    "svd(factors={})", "svd(rank=0, factors={})", "topk(values=topk(values={}))", "atomo({})",
)  # fmt: skip
SETTINGS: Final = (
    "qsgd(bits=1)", "qsgd(bucket_size=1)", "qsgd(levels=255)", "topk(ratio=1e-300)",
    "chunktopk(chunk=1048576, ratio=1.0)", "fourier(block=1024)", "svd(matricisation=auto)",
    "lss(buckets=16777216)", "sketchml(cells=4.0)", "countsketch(ratio=1.0)", "randk(ratio=1.0)",
    "svd(rank=1000000000000)", "onebit(scope=layer)", "atomo(block=2)", "dragonn(threshold=1000)",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One row of the section table, with its section."""

    dtype: int
    storage: int
    shape: tuple[int, ...]
    stored: int
    """Number of bytes of the section, from the row."""
    body: bytes


@dataclass(frozen=True)
class Shape:
    """Description of one tensor in a frame."""

    dtype: int
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Parts:
    """Parts of a frame."""

    head: bytes
    spec: str | None
    """None: the description is empty."""
    form: int
    """Flags: one tensor or a list, and the presence of `below`."""
    below: int
    """Vectors of fewer entries are dense."""
    shapes: tuple[Shape, ...]
    rows: tuple[Row, ...]


def take_apart(frame: bytes) -> Parts:
    """Returns the parts of a valid frame."""
    cursor = Cursor(memoryview(frame))
    head = bytes(cursor.take(FIXED.size))
    described = Cursor(cursor.take(cursor.varint()))
    spec, form, below, shapes = None, 0, 0, []
    if cursor.position > FIXED.size + 1:
        spec, form = described.string(), described.byte()
        below = described.varint() if form & BOUNDED else 0
        for _ in range(described.varint()):
            dtype, count = described.byte(), described.byte()
            shapes.append(Shape(dtype, tuple(described.varint() for _ in range(count))))
    rows = []
    for _ in range(cursor.varint()):
        dtype, storage, count = cursor.byte(), cursor.byte(), cursor.byte()
        sizes = tuple(cursor.varint() for _ in range(count))
        rows.append(Row(dtype, storage, sizes, cursor.varint(), b""))
    cursor.take(-cursor.position % 8)
    full = tuple(replace(row, body=bytes(cursor.take(row.stored))) for row in rows)
    return Parts(head, spec, form, below, tuple(shapes), full)


def join(parts: Parts) -> bytes:
    """Returns the frame of parts, with a valid checksum."""
    described = b""
    if parts.spec is not None:
        described = string(parts.spec) + bytes([parts.form])
        described += varint(parts.below) if parts.form & BOUNDED else b""
        described += varint(len(parts.shapes))
        for shape in parts.shapes:
            described += bytes([shape.dtype, len(shape.sizes)]) + b"".join(map(varint, shape.sizes))
    data = bytearray(parts.head + varint(len(described)) + described + varint(len(parts.rows)))
    for row in parts.rows:
        data += bytes([row.dtype, row.storage, len(row.shape)])
        data += b"".join(map(varint, row.shape)) + varint(row.stored)
    data += bytes(-len(data) % 8) + b"".join(row.body for row in parts.rows)
    struct.pack_into("<Q", data, CHECKSUM_AT, checksum(np.frombuffer(data, np.uint8)))
    return bytes(data)


def mutant(parts: Parts, donor: Parts, chance: random.Random) -> bytes:
    """Returns a frame of mutated parts, some from a donor."""
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        parts = chance.choice(MUTATIONS)(parts, donor, chance)
    return join(parts)


def change_rows(parts: Parts, donor: Parts, chance: random.Random) -> Parts:
    """Swaps, repeats or removes rows, or takes rows from the donor."""
    rows, place = list(parts.rows), chance.randrange(len(parts.rows) + 1)
    match chance.choice((0, 1, 2, 3, 3, 3, 4)):
        case 0:
            chance.shuffle(rows)
        case 1:
            rows[place:place] = rows[place : place + 1] * chance.choice((1, 2, 50))
        case 2:
            del rows[place : place + 1]
        case 3:
            kind = [(row.dtype, len(row.shape)) for row in rows[place : place + 1]]
            alike = [row for row in donor.rows if [(row.dtype, len(row.shape))] == kind]
            rows[place : place + 1] = [chance.choice(alike or [*donor.rows])] if donor.rows else []
        case _:
            rows = [*donor.rows]
    return replace(parts, rows=tuple(rows))


def change_row(parts: Parts, donor: Parts, chance: random.Random) -> Parts:
    """Changes the content of one section and its row, or the row alone."""
    if not parts.rows:
        return parts
    rows, place = list(parts.rows), chance.randrange(len(parts.rows))
    rows[place] = chance.choice(CONTENTS)(rows[place], chance)
    if chance.random() < 0.2 and donor.rows:  # the same content with the donor's row
        donor_row = chance.choice(donor.rows)
        rows[place] = replace(rows[place], dtype=donor_row.dtype, shape=donor_row.shape)
    return replace(parts, rows=tuple(rows))


def change_description(parts: Parts, donor: Parts, chance: random.Random) -> Parts:
    """Changes the codec, wraps it, or changes the tensors."""
    if parts.spec is None:
        return replace(donor, head=parts.head, rows=parts.rows)
    match chance.randrange(7):
        case 0:
            return replace(parts, spec=donor.spec)
        case 1:
            return replace(parts, spec=chance.choice(WRAPPERS).format(parts.spec))
        case 2:
            return replace(parts, spec=chance.choice(SETTINGS))
        case 3:
            return replace(parts, shapes=donor.shapes, form=chance.randrange(6))
        case 4:
            return replace(
                parts, shapes=parts.shapes * chance.choice((0, 2, 40)), form=parts.form & BOUNDED
            )
        case 5:
            form = chance.choice((parts.form, parts.form ^ BOUNDED))
            return replace(parts, form=form, below=chance.choice(SIZES))
        case _:
            shapes = tuple(reshaped(shape, chance) for shape in parts.shapes)
            return replace(parts, shapes=shapes)


def reshaped(shape: Shape, chance: random.Random) -> Shape:
    """Changes the order, the number or the sizes of dimensions."""
    sizes = [*shape.sizes]
    match chance.randrange(4):
        case 0:
            chance.shuffle(sizes)
        case 1:
            sizes += [1] * chance.choice((1, 2, 13, 16, 61, 62, 200 - len(sizes)))
        case 2:
            sizes[-2:] = [math.prod(sizes[-2:])]
        case _:
            sizes[:1] = [chance.choice(SIZES)]
    del sizes[255:]  # the number of dimensions is a byte
    return Shape(chance.choice((shape.dtype, shape.dtype, chance.randrange(11))), tuple(sizes))


def change_kind(parts: Parts, donor: Parts, chance: random.Random) -> Parts:
    """Changes the kind of message in the header."""
    head = bytearray(parts.head)
    head[KIND_AT] = chance.choice((donor.head[KIND_AT], chance.randrange(1, 9)))
    return replace(parts, head=bytes(head))


def resized(row: Row, chance: random.Random) -> Row:
    """Changes the size of one dimension; small sections get as many bytes."""
    if not row.shape:
        return replace(row, shape=(chance.choice(SIZES),))
    place, size = chance.randrange(len(row.shape)), chance.choice((*SIZES, -1, -2))
    claimed = max(0, row.shape[place] + chance.choice((-1, 1))) if size < 0 else size
    shape = (*row.shape[:place], claimed, *row.shape[place + 1 :])
    return refilled(replace(row, shape=shape), row.body)


def refilled(row: Row, content: bytes) -> Row:
    """Returns the row with its content repeated to the size of its shape, if that size is small."""
    item = DTYPES[row.dtype].itemsize if row.dtype < len(DTYPES) else 1
    size = item * math.prod(row.shape)
    if row.storage or size > 2**20:
        return row
    body = (content * (size // len(content) + 1))[:size] if content else bytes(size)
    return replace(row, stored=size, body=body)


def recounted(row: Row, chance: random.Random) -> Row:
    """Replaces a number in the section by a boundary value."""
    body, form = bytearray(row.body), chance.choice("iqfdBH")
    width = struct.calcsize(form)
    if len(body) >= width:
        place = chance.randrange(min(len(body) // width, chance.choice((1, 4, 10**9)))) * width
        if form in "fd":
            floats = (0.0, -0.0, float("inf"), float("nan"), 3e38, -3e38, 1e-45)
            struct.pack_into(f"<{form}", body, place, chance.choice(floats))
        else:
            number = chance.choice(COUNTS) % 2 ** (8 * width)
            struct.pack_into(f"<{form.upper()}", body, place, number)
    return replace(row, body=bytes(body))


def other_bytes(row: Row, chance: random.Random) -> Row:
    """Replaces the content by equal or random bytes."""
    size = len(row.body)
    made = (bytes(size), b"\xff" * size, b"\x55" * size, chance.randbytes(size))
    return replace(row, body=chance.choice(made))


def other_storage(row: Row, chance: random.Random) -> Row:
    """Stores the section as a blosc buffer of the same or other bytes, or changes its storage."""
    if row.storage:
        return replace(row, storage=chance.randrange(3))
    raw = chance.choice((row.body, bytes(len(row.body)), row.body * 2, bytes(2**20))) or b"\0"
    packed = blosc.compress(raw, typesize=4, cname=chance.choice(("lz4", "zstd", "blosclz")))
    return replace(row, storage=1, stored=len(packed), body=packed)


def other_row(row: Row, chance: random.Random) -> Row:
    """Changes the row so that it contradicts its section."""
    match chance.randrange(4):
        case 0:
            return replace(row, dtype=chance.randrange(11))
        case 1:
            return replace(row, stored=max(0, row.stored + chance.choice((-8, -1, 1, 8, 2**40))))
        case 2:
            return replace(row, shape=(*row.shape, 1))
        case _:
            return replace(row, shape=row.shape[1:])


CONTENTS: Final = (
    *(resized,) * 2, *(recounted,) * 5, *(other_bytes,) * 2, other_storage, other_row,
)  # fmt: skip
MUTATIONS: Final = (
    *(change_rows,) * 2, *(change_row,) * 6, *(change_description,) * 2, change_kind,
)  # fmt: skip
