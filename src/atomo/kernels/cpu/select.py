"""Which entries are large, in one pass with the residual. Contracts: `kernels/select`."""

import numpy as np
from numpy.typing import NDArray

from atomo.kernels.cpu import jit

__all__ = [
    "above",
    "add_at",
    "chunk_sums",
    "draw",
    "kth_largest",
    "largest_bits",
    "magnitudes",
    "permutation",
    "survivors",
]

Floats = NDArray[np.float32]
Bits = NDArray[np.int32]
Indices = NDArray[np.int64]

TILE = 2048
LANES = 32
ROUNDS = 4
MAGNITUDE = np.int32(0x7FFFFFFF)


@jit
def above(
    values: Floats,
    added: Floats,
    add: bool,
    low: np.int32,
    clear: bool,
    indices: Indices,
    found: Floats,
) -> tuple[int, int]:
    """Finds the entries whose magnitude has bits >= low, after adding `added` if asked to.

    Returns:
        How many there are, and how many of them, the first ones, there was room to store (and to
        clear, if asked to).
    """
    count = stored = 0
    for start in range(0, values.size, TILE):
        part = values[start : start + TILE]
        if add:
            other = added[start : start + TILE]
            for i in range(part.size):
                part[i] += other[i]
        bits = part.view(np.int32)
        room = count + TILE <= indices.size
        for block in range(0, part.size, LANES):
            lanes = bits[block : block + LANES]
            most = np.int32(0)
            for j in range(lanes.size):
                most = max(most, np.int32(lanes[j] & MAGNITUDE))
            if most < low:
                continue
            if room:
                for j in range(lanes.size):
                    indices[count] = start + block + j
                    count += int(np.int32(lanes[j] & MAGNITUDE) >= low)
            else:
                for j in range(lanes.size):
                    count += int(np.int32(lanes[j] & MAGNITUDE) >= low)
        if room:
            for c in range(stored, count):
                found[c] = part[indices[c] - start]
                if clear:
                    part[indices[c] - start] = 0
            stored = count
    return count, stored


@jit
def kth_largest(bits: Bits, k: int) -> tuple[int, int]:
    """The k-th largest magnitude of float32 numbers given as int32: three digits, high ones first.

    Returns:
        Its bits, and how many entries are above it.
    """
    prefix, left = 0, k
    for shift, width in ((20, 11), (9, 11), (0, 9)):
        counts = np.zeros(1 << width, np.int64)
        digit = (1 << width) - 1
        for i in range(bits.size):
            magnitude = np.int64(bits[i] & MAGNITUDE)
            if magnitude >> (shift + width) == prefix:
                counts[(magnitude >> shift) & digit] += 1
        at = digit
        while counts[at] < left:
            left -= counts[at]
            at -= 1
        prefix = (prefix << width) | at
    return prefix, k - left


@jit
def magnitudes(values: Floats, added: Floats, add: bool, positions: Indices, found: Floats) -> None:
    """The magnitudes at some positions, which are below the size, of the sum if asked to."""
    for i in range(positions.size):
        found[i] = values[np.uint64(positions[i])]
    if add:  # two loops: each keeps as many reads from memory in flight as there can be
        for i in range(positions.size):
            found[i] += added[np.uint64(positions[i])]
    for i in range(found.size):
        found[i] = abs(found[i])


@jit
def largest_bits(bits: Bits) -> np.int32:
    """The largest magnitude of float32 numbers given as int32, as bits."""
    most = np.int32(0)
    for i in range(bits.size):
        most = max(most, np.int32(bits[i] & MAGNITUDE))
    return most


@jit
def add_at(out: Floats, indices: Indices, values: Floats, scale: float) -> None:
    """out[indices] += scale * values, each index once."""
    factor = np.float32(scale)
    for i in range(indices.size):
        out[indices[i]] += factor * values[i]


@jit
def survivors(indices: Indices, seed: int, slots: int, kept: NDArray[np.bool_]) -> None:
    """Lets every index claim a slot of a hash table, the last one winning; marks the winners."""
    table = np.zeros(slots, np.int64)
    places = np.empty(indices.size, np.int64)
    for i in range(indices.size):
        hashed = np.uint64(indices[i]) + np.uint64(seed)
        hashed = (hashed ^ (hashed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        hashed = (hashed ^ (hashed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        hashed = (hashed ^ (hashed >> np.uint64(31))) >> np.uint64(32)
        places[i] = np.int64((hashed * np.uint64(slots)) >> np.uint64(32))
        table[places[i]] = i + 1  # 0 is an empty slot
    for i in range(indices.size):
        kept[i] = table[places[i]] == i + 1


@jit
def chunk_sums(
    values: Floats, added: Floats, add: bool, chunk: int, sums: NDArray[np.float64]
) -> None:
    """The L1 norm of each run of `chunk` entries, after adding `added` if asked to."""
    lanes = np.zeros(8)
    for number in range(sums.size):
        part = values[number * chunk : (number + 1) * chunk]
        if add:
            other = added[number * chunk : (number + 1) * chunk]
            for i in range(part.size):
                part[i] += other[i]
        lanes[:] = 0
        whole = part.size // 8 * 8
        for i in range(0, whole, 8):
            for j in range(8):
                lanes[j] += abs(np.float64(part[i + j]))
        for i in range(whole, part.size):
            lanes[0] += abs(np.float64(part[i]))
        sums[number] = lanes.sum()


@jit
def permutation(seed: int) -> Indices:
    """The keys and the odd factors of the rounds of a permutation, then one key more."""
    words = np.empty(2 * ROUNDS + 1, np.int64)
    for i in range(words.size):
        word = np.uint64(seed) + np.uint64(i + 1) * np.uint64(0x9E3779B97F4A7C15)  # splitmix64
        word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        words[i] = np.int64((word ^ (word >> np.uint64(31))) >> np.uint64(2))
        if ROUNDS <= i < 2 * ROUNDS:
            words[i] |= 1
    return words


@jit
def draw(words: Indices, bits: int, entries: int, indices: Indices) -> None:
    """Fills `indices` with the images of 0, 1, 2, ... under a permutation of the entries."""
    mask, half = (1 << bits) - 1, max(1, bits // 2)
    for i in range(indices.size):
        x = i
        while True:  # a permutation of a power of two, walked until it is back among the entries
            for r in range(ROUNDS):
                x = ((x ^ (words[r] & mask)) * words[ROUNDS + r]) & mask
                x ^= x >> half
            x ^= words[2 * ROUNDS] & mask
            if x < entries:
                break
        indices[i] = x
