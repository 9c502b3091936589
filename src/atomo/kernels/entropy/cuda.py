"""Huffman codes in Triton, blocks in parallel. Contracts and format: `kernels/entropy`.

The device counts the symbols of each stream, and the host reads the counts once. It computes a code
from them, as on the CPU, and so knows the length of each stream before it is written.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
import triton.language as tl
from jaxtyping import Int64
from numpy.typing import NDArray
from torch import Tensor

from atomo.core.devices import to_device, to_host
from atomo.kernels.blocks.cuda import put_bits, starts_of
from atomo.kernels.entropy import codes, layout
from atomo.kernels.entropy.layout import STREAMS, Streams
from atomo.kernels.gaps import MAX_SYMBOL
from atomo.kernels.gaps.cuda import gaps_to_trits, trits_to_gaps
from atomo.kernels.prefix.cuda import Stream, read_codes
from atomo.kernels.triton_jit import device_code

__all__ = ["compress", "decompress_all"]

Counts = NDArray[np.int64]
BLOCK: Final = 2048
PROGRAMS: Final = 128  # of a stream, share a histogram
LANES: Final = 256
EACH: Final = 4  # symbols of a lane; their codes are joined before a write
ALIGNED: Final = 16  # bytes; where symbols begin, so that programs read whole vectors of them


def compress(symbols: Tensor, coded: bool = True, trits: bool = False) -> Tensor:
    if not coded:
        return stored(symbols)
    size = torch.full((), len(symbols), dtype=torch.int64, device=symbols.device)
    candidates = [(symbols, size)] + ([trits_to_gaps(symbols)] if trits else [])
    parts = [tally(*candidate).flatten() for candidate in candidates] + [
        candidate.view(1) for _, candidate in candidates
    ]
    (numbers,) = to_host([torch.cat(parts)])  # the only wait
    tallies = numbers[: -len(candidates)].view(len(candidates), STREAMS + 1, layout.SYMBOLS).numpy()
    sizes: list[int] = numbers[-len(candidates) :].tolist()
    counts, choice = frequencies(tallies[0], sizes[0]), 0
    if trits and layout.prefers_gaps(counts) and sizes[1] and not counts[MAX_SYMBOL + 1 :].any():
        counts, choice = frequencies(tallies[1], sizes[1]), 1
    lengths = layout.lengths_for(counts, sizes[choice], len(symbols))
    if lengths is None:
        return stored(symbols)
    streams = ((tallies[choice][:STREAMS] * lengths).sum(1) + 31) // 32
    if layout.longer_than_plain(streams, len(symbols)):
        return stored(symbols)
    form = layout.GAPS if choice else layout.CODED
    return encoded(candidates[choice][0][: sizes[choice]], streams, lengths, form)


def stored(symbols: Tensor) -> Tensor:
    """Builds the plain form."""
    count = len(symbols)
    words = symbols.new_zeros(layout.HEADER + (count + 3) // 4, dtype=torch.int32)
    words[:2] = to_device(torch.tensor([count, layout.PLAIN], dtype=torch.int32), symbols.device)
    words[layout.HEADER :].view(torch.uint8)[:count] = symbols
    return words


def frequencies(tally: Int64[np.ndarray, "5 256"], size: int) -> Int64[np.ndarray, " 256"]:
    """Counts each symbol, in a long message approximately, with the numbers of the CPU backend."""
    whole: Int64[np.ndarray, " 256"] = tally[:STREAMS].sum(0)
    return whole if size < layout.SAMPLED else tally[STREAMS] * layout.EACH + (whole > 0)


def tally(symbols: Tensor, size: Tensor) -> Tensor:
    """Counts each symbol in each stream, and in the blocks that are the sample.

    Args:
        symbols: at least one.
        size: the number of symbols.
    """
    counts = size.new_zeros(STREAMS + 1, layout.SYMBOLS)
    grid = min(-(-len(symbols) // (STREAMS * BLOCK)), PROGRAMS), STREAMS
    sampled = {"SAMPLED": layout.SAMPLED, "RUN": layout.BLOCK, "EACH": layout.EACH}
    count_symbols[grid](symbols, size, counts, **sampled, SYMBOLS=layout.SYMBOLS, BLOCK=BLOCK)
    return counts


@device_code
def count_symbols(
    symbols, size, counts, SAMPLED: tl.constexpr, RUN: tl.constexpr, EACH: tl.constexpr,
    SYMBOLS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    entries, stream, value = tl.load(size), tl.program_id(1), tl.arange(0, SYMBOLS)
    quarter = (entries + 3) // 4
    stop = tl.minimum((stream + 1) * quarter, entries)
    start = stream * quarter + tl.program_id(0).to(tl.int64) * BLOCK
    seen, sampled = tl.zeros([SYMBOLS], tl.int32), tl.zeros([SYMBOLS], tl.int32)
    while start < stop:
        place = start + tl.arange(0, BLOCK)
        symbol = tl.load(symbols + place, mask=place < stop, other=0).to(tl.int32)
        seen += tl.histogram(symbol, SYMBOLS, mask=place < stop)
        if entries >= SAMPLED:
            chosen = (place < stop) & (place // RUN % EACH == 0)
            sampled += tl.histogram(symbol, SYMBOLS, mask=chosen)
        start += tl.num_programs(0) * BLOCK
    tl.atomic_add(counts + stream * SYMBOLS + value, seen.to(tl.int64), mask=seen > 0)
    tl.atomic_add(counts + 4 * SYMBOLS + value, sampled.to(tl.int64), mask=sampled > 0)


def encoded(tokens: Tensor, sizes: Counts, lengths: Counts, form: int) -> Tensor:
    """Builds the coded form.

    Args:
        tokens: the symbols to code.
        sizes: the words of each stream.
        lengths: of the codes.
        form: CODED or GAPS.
    """
    head = layout.head_of(len(tokens), form, sizes, lengths)
    starts = layout.OVERHEAD + np.cumsum(sizes) - sizes
    made = codes.canonical_codes(lengths) | lengths << codes.MAX_CODE_BITS
    host = torch.from_numpy(np.concatenate([made, starts, head]).astype(np.int32))
    header = to_device(host, tokens.device)
    words = header.new_zeros(layout.OVERHEAD + int(sizes.sum()))
    words[: layout.OVERHEAD] = header[-layout.OVERHEAD :]
    blocks = -(-layout.quarter_of(len(tokens)) // (LANES * EACH))
    bits = header.new_empty(STREAMS, blocks, dtype=torch.int64)
    shape = {"EACH": EACH, "LANES": LANES, "LONGEST": codes.MAX_CODE_BITS}
    measure[(blocks, STREAMS)](tokens, len(tokens), header, bits, **shape)
    write_codes[(blocks, STREAMS)](tokens, len(tokens), header, starts_of(bits), words, **shape)
    return words


@device_code
def joined_codes(
    tokens, entries, header, EACH: tl.constexpr, LANES: tl.constexpr, LONGEST: tl.constexpr
):
    """Returns the codes of the neighbours that a lane handles as one, and their bits."""
    stream, quarter = tl.program_id(1), (tl.zeros([], tl.int64) + entries + 3) // 4
    stop = tl.minimum((stream + 1) * quarter, entries)
    start = stream * quarter + tl.program_id(0).to(tl.int64) * (LANES * EACH)
    code, bits = tl.zeros([LANES], tl.uint64), tl.zeros([LANES], tl.int32)
    for step in tl.static_range(EACH):
        place = start + tl.arange(0, LANES) * EACH + step
        token = tl.load(tokens + place, mask=place < stop, other=0).to(tl.int32)
        entry = tl.load(header + token, mask=place < stop, other=0)
        code |= (entry & ((1 << LONGEST) - 1)).to(tl.uint64) << bits.to(tl.uint64)
        bits += entry >> LONGEST
    return code, bits


@device_code
def measure(
    tokens, entries, header, bits, EACH: tl.constexpr, LANES: tl.constexpr, LONGEST: tl.constexpr
):
    _, widths = joined_codes(tokens, entries, header, EACH, LANES, LONGEST)
    at = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    tl.store(bits + at, tl.sum(widths).to(tl.int64))


@device_code
def write_codes(
    tokens, entries, header, starts, words,
    EACH: tl.constexpr, LANES: tl.constexpr, LONGEST: tl.constexpr,
):  # fmt: skip
    code, widths = joined_codes(tokens, entries, header, EACH, LANES, LONGEST)
    stream = tl.program_id(1)
    before = tl.load(starts + stream * (tl.num_programs(0) + 1) + tl.program_id(0))
    first = tl.load(header + 256 + stream).to(tl.int64) * 32
    put_bits(words, first + before + tl.cumsum(widths, 0) - widths, code, widths > 0)


def decompress_all(words: Sequence[Tensor], count: int, device: torch.device) -> list[Tensor]:
    messages = [layout.checked(message.cpu().numpy(), count) for message in words]
    coded = [message for message in messages if isinstance(message, Streams)]
    decoded = iter(read(coded, count, device) if coded else [])
    return [
        next(decoded)
        if isinstance(message, Streams)
        else to_device(torch.from_numpy(message), device)
        for message in messages
    ]


def read(messages: Sequence[Streams], count: int, device: torch.device) -> list[Tensor]:
    """Decodes the symbols of coded messages, all in one pass."""
    streams, places, first, out = list[Stream](), list[int](), 0, 0
    for number, message in enumerate(messages):
        quarter, places = layout.quarter_of(message.tokens), [*places, out]
        for turn, size in enumerate(message.sizes.tolist()):
            begin, end = (min(place * quarter, message.tokens) for place in (turn, turn + 1))
            streams.append(Stream(first, size, number, out + begin, end - begin))
            first += size
        out += -(-message.tokens // ALIGNED) * ALIGNED
    words, tables = (
        to_device(torch.from_numpy(np.concatenate(parts).view(np.int32)), device)
        for parts in (
            [message.body for message in messages],
            [message.table for message in messages],
        )
    )
    tokens = torch.empty(out, dtype=torch.uint8, device=device)
    sound = read_codes(words, tables, streams, tokens).view(-1, STREAMS).amin(1)
    return [
        symbols_of(tokens[place : place + message.tokens], message.form, count, good)
        for message, place, good in zip(messages, places, sound.unbind(), strict=True)
    ]


def symbols_of(tokens: Tensor, form: int, count: int, sound: Tensor) -> Tensor:
    """Expands tokens to symbols, with DAMAGED in front if they are invalid."""
    symbols = tokens
    if form == layout.GAPS:
        symbols = tokens.new_empty(-(-count // ALIGNED) * ALIGNED)
        sound = sound * (1 - gaps_to_trits(tokens, count, symbols))
    symbols[:1].bitwise_or_((sound - 1).to(torch.uint8))  # 0 - 1 is DAMAGED in a byte
    return symbols[:count]
