"""One bit an entry, and the residual in the same passes, in numba. Contracts: `kernels/sign`.

Bit i of a tile's word j is the sign of entry j of row i, so that no entry ever moves between vector
lanes.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atomo.kernels.jit import jit, jit_sum
from atomo.kernels.selection.cpu import add_up, most_bits
from atomo.kernels.sign import TILE, word_count

__all__ = [
    "add_all_row_signs",
    "add_all_signs",
    "add_pack_means",
    "add_pack_sum",
    "add_row_signs",
    "add_signs",
    "pack_signs",
]

Words = NDArray[np.uint32]
Floats = NDArray[np.float32]
Bits = NDArray[np.int32]
U1, U2, U31 = np.uint32(1), np.uint32(2), np.uint32(31)


def pack_signs(values: Tensor) -> tuple[Tensor, float]:
    words = torch.empty(word_count(len(values)), dtype=torch.int32)
    bits = pack_bits(values.float().numpy().view(np.int32), words.numpy().view(np.uint32))
    return words, float(np.array([bits], np.int32).view(np.float32)[0])


def add_pack_sum(values: Tensor, added: Tensor | None = None) -> tuple[Tensor, float, float, int]:
    words = torch.empty(word_count(len(values)), dtype=torch.int32)
    addend = (values if added is None else added).float().numpy()
    bits = words.numpy().view(np.uint32)
    positive, negative, count = add_pack_total(
        values.float().numpy(), addend, added is not None, bits
    )
    return words, float(positive), float(negative), int(count)


def add_signs(words: Tensor, positive: float, negative: float, out: Tensor) -> None:
    add_either(words.numpy().view(np.uint32), positive, negative, out.numpy())


def add_pack_means(values: Tensor, added: Tensor | None, row: int) -> tuple[Tensor, Tensor]:
    means = torch.empty(2 * -(-len(values) // row))
    words = torch.empty(word_count(len(values)), dtype=torch.int32)
    addend = (values if added is None else added).float().numpy()
    bits = words.numpy().view(np.uint32)
    add_pack_runs(values.float().numpy(), addend, added is not None, row, bits, means.numpy())
    return words, means


def add_row_signs(words: Tensor, means: Tensor, row: int, scale: float, out: Tensor) -> None:
    bits = words.numpy().view(np.uint32)
    add_runs(bits, means.numpy(), row, np.float32(scale), out.numpy())


def add_all_signs(words: Tensor, units: Sequence[float], out: Tensor) -> None:
    for frame, unit in zip(words, units, strict=True):
        add_signs(frame, unit, -unit, out)


def add_all_row_signs(words: Tensor, means: Tensor, row: int, scale: float, out: Tensor) -> None:
    for frame, own in zip(words, means, strict=True):
        add_row_signs(frame, own, row, scale, out)


@jit
def pack_tile(part: Bits, words: Words) -> None:
    """Packs the sign bits of a tile."""
    width = words.size
    words[:] = 0
    whole = 32 if part.size == 32 * width else 0
    for row in range(0, whole, 4):  # four rows to a write
        first, second = part[row * width : (row + 1) * width], part[(row + 1) * width :]
        third, fourth = part[(row + 2) * width :], part[(row + 3) * width :]
        place = np.uint32(row)
        for j in range(first.size):
            low = np.uint32(first[j]) >> U31 | (np.uint32(second[j]) >> U31) << U1
            high = np.uint32(third[j]) >> U31 | (np.uint32(fourth[j]) >> U31) << U1
            words[j] |= np.uint32((low | high << U2) << place)
    for row in range(whole, 32):
        entries = part[row * width : (row + 1) * width]
        for j in range(entries.size):
            words[j] |= np.uint32((np.uint32(entries[j]) >> U31) << np.uint32(row))


@jit
def ones(words: Words) -> np.int64:
    """Counts the set bits."""
    # Bits are added up in pairs, in fours and in bytes, and a product adds the bytes (Warren,
    # "Hacker's Delight", 5-1): unlike a table, this is done in vectors.
    count = np.int64(0)
    for i in range(words.size):
        x = words[i]
        x -= x >> U1 & np.uint32(0x55555555)
        x = (x & np.uint32(0x33333333)) + (x >> U2 & np.uint32(0x33333333))
        x = x + (x >> np.uint32(4)) & np.uint32(0x0F0F0F0F)
        count += np.int64(np.uint32(x * np.uint32(0x01010101)) >> np.uint32(24))
    return count


@jit
def pack_bits(bits: Bits, words: Words) -> np.int32:
    """Packs the sign bits of float32 as int32 numbers; returns the largest magnitude's bits."""
    largest = np.int32(0)
    for start in range(0, bits.size, TILE):
        part = bits[start : start + TILE]
        pack_tile(part, words[start // 32 : start // 32 + (part.size + 31) // 32])
        largest = max(largest, most_bits(part))
    return largest


@jit_sum
def sums_of(values: Floats) -> tuple[float, float]:
    """Returns the sum of the entries, and the sum of their magnitudes."""
    total = size = 0.0
    for i in range(values.size):
        value = np.float64(values[i])
        total += value
        size += abs(value)
    return total, size


@jit
def add_pack_total(
    values: Floats, added: Floats, add: bool, words: Words
) -> tuple[float, float, int]:
    """Adds `added` to `values` if `add` is True, packs the signs, and sums the entries of each
    sign.

    Returns:
        The sums of the entries without and with a sign bit, and the number of entries without.
    """
    total = size = 0.0
    negative = 0
    for start in range(0, values.size, TILE):
        part = values[start : start + TILE]
        if add:
            add_up(part, added[start : start + TILE])
        tile_words = words[start // 32 : start // 32 + (part.size + 31) // 32]
        pack_tile(part.view(np.int32), tile_words)
        negative += ones(tile_words)
        sums = sums_of(part)
        total += sums[0]
        size += sums[1]
    # sum + sum of magnitudes = twice the positive sum: two sums without a branch give both.
    return (total + size) / 2, (total - size) / 2, values.size - negative


@jit
def add_either(words: Words, positive: float, negative: float, out: Floats) -> None:
    """Adds `positive` where the bit is 0 and `negative` where it is 1."""
    plus, minus = np.float32(positive), np.float32(negative)
    for start in range(0, out.size, TILE):
        part = out[start : start + TILE]
        width = (part.size + 31) // 32
        tile_words = words[start // 32 : start // 32 + width]
        for row in range(32):
            target = part[row * width : (row + 1) * width]
            mask = np.uint32(1 << row)
            for j in range(target.size):
                target[j] += minus if (tile_words[j] & mask) != 0 else plus


@jit
def add_pack_runs(
    values: Floats, added: Floats, add: bool, row: int, words: Words, means: Floats
) -> None:
    """Adds `added` to `values` if asked to, packs the signs, and takes the means of each run of
    `row` entries: of those without and of those with a sign bit; 0 where there are none.
    """
    packed = 0
    for number in range(means.size // 2):
        total, size, negative = 0.0, 0.0, 0
        stop = min((number + 1) * row, values.size)
        for start in range(number * row, stop, TILE):
            end = min(start + TILE, stop)
            part = values[start:end]
            if add:
                add_up(part, added[start:end])
            negative += int(negatives(part.view(np.int32)))
            sums = sums_of(part)
            total += sums[0]
            size += sums[1]
            # Tiles of signs end elsewhere than runs: each is packed once all of it is there, while
            # it is still in the cache.
            while end - packed >= TILE or end == values.size > packed:
                last = min(packed + TILE, end)
                tile_words = words[packed // 32 : (last + 31) // 32]
                pack_tile(values[packed:last].view(np.int32), tile_words)
                packed = last
        means[2 * number] = (total + size) / 2 / max(stop - number * row - negative, 1)
        means[2 * number + 1] = (total - size) / 2 / max(negative, 1)


@jit
def negatives(bits: Bits) -> np.int32:
    """Counts the sign bits of at most 2^31 entries."""
    count = np.int32(0)
    for i in range(bits.size):
        count += np.int32(np.uint32(bits[i]) >> U31)
    return count


@jit
def add_runs(words: Words, means: Floats, row: int, scale: np.float32, out: Floats) -> None:
    """Adds scale times the mean of its sign in its run of `row` entries to each entry."""
    for start in range(0, out.size, TILE):
        part = out[start : start + TILE]
        width = (part.size + 31) // 32
        tile_words = words[start // 32 : start // 32 + width]
        for bit in range(32):
            place, stop = min(bit * width, part.size), min((bit + 1) * width, part.size)
            mask, j = np.uint32(1 << bit), 0
            while place < stop:
                number = (start + place) // row
                end = min(stop, (number + 1) * row - start)
                plus, minus = scale * means[2 * number], scale * means[2 * number + 1]
                target, column = part[place:end], tile_words[j : j + end - place]
                for i in range(target.size):
                    target[i] += minus if (column[i] & mask) != 0 else plus
                j += end - place
                place = end
