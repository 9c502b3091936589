"""Powers of two, their signs and the largest magnitude in one pass, in Triton.

Contracts: `kernels/powers`. A program has TILES whole tiles and takes them 128 entries at a time,
so that the next random words follow from the last words in their registers. The entries after the
last whole tile has shorter rows, and a launch of its own.
"""

from collections.abc import Sequence
from typing import Final

import torch
import triton.language as tl
from torch import Tensor

from atomo.kernels.blocks.cuda import filled
from atomo.kernels.powers import TILE
from atomo.kernels.random_words.cuda import first_words, mix, next_words
from atomo.kernels.sign import WIDTH, word_count
from atomo.kernels.sign.cuda import launches, places_of
from atomo.kernels.triton_jit import EXACT, device_code

__all__ = ["add_all_powers", "add_powers", "pack_powers"]

TILES: Final = 8


def pack_powers(values: Tensor, seed: int) -> tuple[Tensor, Tensor, float]:
    symbols = torch.empty(len(values), dtype=torch.uint8, device=values.device)
    words = symbols.new_empty(word_count(len(values)), dtype=torch.int32)
    whole, remainder = divmod(len(values), TILE)
    parts = words.new_zeros(whole + 1)
    arguments = values, seed, symbols, words, parts
    if whole:
        pack_tiles[(-(-whole // TILES),)](*arguments, whole, TILES=TILES, TILE=TILE)
    if remainder:
        sizes = whole, len(values), -(-remainder // 32)
        pack_last[(1,)](*arguments, *sizes, TILE=TILE, WIDTH=WIDTH)
    return symbols, words, float(parts.max().view(torch.float32))  # the only wait


@device_code
def rounded(bits, word):
    """Exponents of the next powers of two, up as often as the mantissa and random bits carry."""
    return (((bits & 0x7FFFFFFF).to(tl.uint32, bitcast=True) + (word >> 9)) >> 23).to(tl.uint8)


@device_code
def pack_tiles(
    values,
    seed,
    symbols,
    words,
    parts,
    tiles,
    TILES: tl.constexpr,
    TILE: tl.constexpr,
):
    tile = tl.program_id(0).to(tl.int64) * TILES + tl.arange(0, TILES)
    lane, inside = tl.arange(0, 128)[None, :], (tile < tiles)[:, None]
    word = first_words(mix((tl.zeros([TILES], tl.uint64) + seed) ^ mix(tile))[:, None], lane)
    signs = tl.zeros([TILES, 128], tl.uint32)
    peaks = tl.zeros([TILES, 128], tl.int32)
    for step in tl.static_range(TILE // 128):
        places = tile[:, None] * TILE + step * 128 + lane
        entry = tl.load(values + places, mask=inside, other=0.0).to(tl.float32)
        bits = entry.to(tl.int32, bitcast=True)
        tl.store(symbols + places, rounded(bits, word), mask=inside)
        # Two rows of 64 side by side: each bit has its own place, so that they add up by columns.
        signs |= (bits.to(tl.uint32, bitcast=True) >> 31) << (2 * step + lane // 64).to(tl.uint32)
        peaks = tl.maximum(peaks, bits & 0x7FFFFFFF)
        word = next_words(word)
    sign_words = tl.sum(tl.reshape(signs, [TILES, 2, 64]), 1).to(tl.int32, bitcast=True)
    tl.store(words + tile[:, None] * 64 + tl.arange(0, 64)[None, :], sign_words, mask=inside)
    tl.store(parts + tile, tl.max(peaks, 1), mask=tile < tiles)


@device_code
def pack_last(
    values,
    seed,
    symbols,
    words,
    parts,
    tile,
    entries,
    width,
    TILE: tl.constexpr,
    WIDTH: tl.constexpr,
):
    rows, column = tl.arange(0, 32)[:, None], tl.arange(0, WIDTH)
    place = rows * width + column[None, :]
    first = tl.zeros([], tl.int64) + tile
    inside = (column[None, :] < width) & (first * TILE + place < entries)
    word = first_words(mix((tl.zeros([], tl.uint64) + seed) ^ mix(first)), place % 128)
    for step in tl.static_range(TILE // 128 - 1):
        word = tl.where(place // 128 > step, next_words(word), word)
    entry = tl.load(values + first * TILE + place, mask=inside, other=0.0).to(tl.float32)
    bits = entry.to(tl.int32, bitcast=True)
    tl.store(symbols + first * TILE + place, rounded(bits, word), mask=inside)
    signs = (bits.to(tl.uint32, bitcast=True) >> 31) << rows.to(tl.uint32)
    sign_words = tl.sum(signs, 0).to(tl.int32, bitcast=True)
    tl.store(words + first * WIDTH + column, sign_words, mask=column < width)
    tl.store(parts + first, tl.max(tl.max(bits & 0x7FFFFFFF, 1), 0))


def add_powers(symbols: Tensor, signs: Tensor, out: Tensor, scale: float) -> None:
    add_all_powers(symbols[None], signs[None], out, [scale])


def add_all_powers(symbols: Tensor, signs: Tensor, out: Tensor, scales: Sequence[float]) -> None:
    several = len(symbols), symbols.stride(0), signs.stride(0)
    for first, tiles, width in launches(len(out)):
        arguments = symbols, signs, out, filled(scales, out), first, len(out), width, *several
        whole = first == 0 and tiles * TILE <= len(out)
        add_tiles[(tiles,)](*arguments, WHOLE=whole, WIDTH=WIDTH, **EXACT)


@device_code
def add_tiles(
    symbols,
    words,
    out,
    scales,
    first,
    entries,
    width,
    frames,
    symbol_stride,
    word_stride,
    WHOLE: tl.constexpr,
    WIDTH: tl.constexpr,
):
    tile = first + tl.program_id(0).to(tl.int64)
    rows, column = tl.arange(0, 32)[:, None], tl.arange(0, WIDTH)
    places, inside = places_of(tile, entries, width, WHOLE, WIDTH)
    word_at, symbol_at = words + tile * WIDTH + column, symbols + places
    entry = tl.load(out + places, mask=inside, other=0.0)
    for _ in range(frames):
        sign_word = tl.load(word_at, mask=column < width, other=0)
        negative = ((sign_word[None, :] >> rows) & 1).to(tl.uint32)
        exponent = tl.load(symbol_at, mask=inside, other=0).to(tl.uint32)
        power = ((exponent << 23) | (negative << 31)).to(tl.float32, bitcast=True)
        entry += power * tl.load(scales)
        word_at += word_stride
        symbol_at += symbol_stride
        scales += 1
    tl.store(out + places, entry, mask=inside)
