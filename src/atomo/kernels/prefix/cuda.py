"""Prefix codes of up to 12 bits read in parallel, in Triton. How: `kernels/prefix`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from atomo.core.devices import to_device
from atomo.kernels.triton_jit import device_code

__all__ = ["Stream", "read_codes"]

CHUNK: Final = 32  # words. Fewer => more programs, and a longer scan
CHUNKS: Final = 32  # of a program that tries all places
LANES: Final = 16  # places, of which 12 are needed
WRITERS: Final = 128  # chunks of a program that writes
SCANNED: Final = 512  # chunks, at most, that are scanned in one go


@dataclass(frozen=True)
class Stream:
    """The position of a stream, and its expected output."""

    first: int  # its first word
    size: int  # words
    table: int  # the number of its table
    out: int  # where its first symbol goes
    count: int  # symbols


def read_codes(words: Tensor, tables: Tensor, streams: Sequence[Stream], out: Tensor) -> Tensor:
    """Fills places of `out` from streams.

    Args:
        words: int32.
        tables: as `codes.decode_table` makes them, a row each, as int32.
        streams: at least one.
        out: uint8.

    Returns:
        For each stream 1 if it had exactly its symbols, else 0.
    """
    chunks = [-(-stream.size // CHUNK) for stream in streams]
    longest, total, rows = max(chunks), 0, []
    for stream, own in zip(streams, chunks, strict=True):
        rows.append([stream.first, stream.size, stream.table, stream.out, stream.count, total])
        total += own
    rows_there = to_device(torch.tensor(rows), words.device)
    sound = rows_there.new_zeros(len(rows), dtype=torch.int32)
    exits, places = rows_there.new_empty(2, max(total, 1))
    counts, entries = sound.new_empty(max(total, 1), LANES), sound.new_empty(max(total, 1))
    shape, count = {"CHUNK": CHUNK, "LANES": LANES}, len(rows)
    read = words, tables, rows_there
    grid = max(1, -(-longest // CHUNKS)), count
    try_places[grid](*read, exits, counts, **shape, CHUNKS=CHUNKS)
    block = min(triton.next_power_of_2(max(longest, 1)), SCANNED)
    link_chunks[(count,)](rows_there, exits, counts, entries, places, **shape, BLOCK=block)
    grid = max(1, -(-longest // WRITERS)), count
    write_symbols[grid](*read, entries, places, out, sound, CHUNK=CHUNK, CHUNKS=WRITERS)
    return sound


@device_code
def slot_at(words, table, word, last, place, reads):
    """Looks up the bits from `place` on, after the first bit of `word`, in the table."""
    # After the last word, the last word is read again: a symbol that uses such bits is found to be
    # too long afterwards.
    at = word + (place >> 5)
    low = tl.load(words + tl.minimum(at, last), mask=reads, other=0).to(tl.uint32, bitcast=True)
    high = tl.load(words + tl.minimum(at + 1, last), mask=reads, other=0)
    window = (high.to(tl.uint32, bitcast=True).to(tl.uint64) << 32) | low.to(tl.uint64)
    bits = (window >> (place & 31).to(tl.uint64)) & 4095
    return tl.load(table + bits.to(tl.int32), mask=reads, other=0)


@device_code
def costs_of(slot, place, room):
    """Returns for a slot the bits of its first code, the bits of all codes that begin before
    `room`, and the number of these codes.
    """
    first, total = (slot >> 21) & 15, (slot >> 16) & 31
    single = place + first >= room
    return first, tl.where(single, first, total), tl.where(single, 1, slot >> 25)


@device_code
def try_places(
    words, tables, streams, exits, counts,
    CHUNK: tl.constexpr, LANES: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    stream = streams + tl.program_id(1) * 6
    first, size = tl.load(stream), tl.load(stream + 1)
    table = tables + tl.load(stream + 2) * 4096
    number = tl.program_id(0).to(tl.int64) * CHUNKS + tl.arange(0, CHUNKS)
    lane = tl.arange(0, LANES)[None, :]
    word = (first + number * CHUNK)[:, None]
    room = (tl.minimum(tl.maximum(size - number * CHUNK, 0), CHUNK) * 32).to(tl.int32)[:, None]
    place = lane + tl.zeros([CHUNKS, LANES], tl.int32)
    count = tl.zeros([CHUNKS, LANES], tl.int32)
    while tl.max(tl.max((place < room).to(tl.int32), 1), 0) > 0:
        for _ in tl.static_range(4):
            reads = place < room
            slot = slot_at(words, table, word, first + size - 1, place, reads)
            _, cost, symbols = costs_of(slot, place, room)
            place += tl.where(reads, cost, 0)
            count += tl.where(reads, symbols, 0)
    chunk = tl.load(stream + 5) + number
    inside = number * CHUNK < size
    tl.store(counts + chunk[:, None] * LANES + lane, count, mask=inside[:, None])
    overshoot = tl.where(lane < 12, place - room, 0).to(tl.int64) << (4 * lane).to(tl.int64)
    tl.store(exits + chunk, tl.sum(overshoot, 1), mask=inside)


@device_code
def after(first, second):
    """Composes two maps of 12 places, four bits each."""
    composed = first & 0
    for place in tl.static_range(12):
        through = (first >> (4 * place)) & 15
        composed |= ((second >> (4 * through)) & 15) << (4 * place)
    return composed


@device_code
def link_chunks(
    streams, exits, counts, entries, places,
    CHUNK: tl.constexpr, LANES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    stream = streams + tl.program_id(0) * 6
    chunks = (tl.load(stream + 1) + CHUNK - 1) // CHUNK
    chunk = tl.load(stream + 5)
    lane = tl.arange(0, BLOCK)
    entry, made = tl.zeros([], tl.int64), tl.zeros([], tl.int64)
    start = tl.zeros([], tl.int64)
    while start < chunks:
        number = start + lane
        inside = number < chunks
        # The map of the chunk before, and of none before the first: each place to itself.
        own = tl.load(exits + chunk + number - 1, mask=inside & (number > 0), other=0xBA9876543210)
        through = (tl.associative_scan(own, 0, after) >> (4 * entry)) & 15
        count = tl.load(counts + (chunk + number) * LANES + through, mask=inside, other=0)
        count = count.to(tl.int64)
        tl.store(entries + chunk + number, through.to(tl.int32), mask=inside)
        tl.store(places + chunk + number, made + tl.cumsum(count, 0) - count, mask=inside)
        entry = tl.sum(tl.where(lane == BLOCK - 1, through, 0))
        made += tl.sum(count)
        start += BLOCK


@device_code
def write_symbols(
    words, tables, streams, entries, places, out, sound,
    CHUNK: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    stream = streams + tl.program_id(1) * 6
    first, size = tl.load(stream), tl.load(stream + 1)
    table, expected = tables + tl.load(stream + 2) * 4096, tl.load(stream + 4)
    out += tl.load(stream + 3)
    number = tl.program_id(0).to(tl.int64) * CHUNKS + tl.arange(0, CHUNKS)
    inside = number * CHUNK < size
    chunk = tl.load(stream + 5) + number
    word = first + number * CHUNK
    room = tl.minimum(tl.maximum(size - number * CHUNK, 0), CHUNK) * 32
    room = room.to(tl.int32)
    place = tl.load(entries + chunk, mask=inside, other=0)
    rank = tl.load(places + chunk, mask=inside, other=0)
    end = tl.zeros([CHUNKS], tl.int32)
    while tl.max(((place < room) & (rank < expected)).to(tl.int32), 0) > 0:
        for _ in tl.static_range(4):
            reads = (place < room) & (rank < expected)
            slot = slot_at(words, table, word, first + size - 1, place, reads)
            first_cost, cost, symbols = costs_of(slot, place, room)
            tl.store(out + rank, (slot & 255).to(tl.uint8), mask=reads)
            second = reads & (symbols == 2) & (rank + 1 < expected)
            tl.store(out + rank + 1, ((slot >> 8) & 255).to(tl.uint8), mask=second)
            # Where the last symbol of the stream ends.
            end = tl.where(reads & (rank + 1 == expected), place + first_cost, end)
            end = tl.where(second & (rank + 2 == expected), place + cost, end)
            place += tl.where(reads, cost, 0)
            rank += tl.where(reads, symbols, 0)
    empty = number + size + expected == 0
    good = empty | ((end > 0) & (number * CHUNK + (end + 31) // 32 == size))
    tl.store(sound + tl.program_id(1) + number * 0, 1, mask=good)
