"""Selection of large entries, the residual in the same pass, in numba. See `kernels.selection`."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atomo.kernels.jit import jit
from atomo.kernels.selection import INFINITY, Bounds, adapted
from atomo.kernels.selection.sampled import largest

__all__ = [
    "above",
    "add_at",
    "add_sets",
    "by_sample",
    "checked",
    "chunk_sums",
    "first_largest",
    "kth_largest",
    "largest",
    "largest_bits",
    "magnitudes",
    "most_bits",
]

Floats = NDArray[np.float32]
Bits = NDArray[np.int32]
Indices = NDArray[np.int64]

TILE = 2048
LANES = 64
MAGNITUDE = np.int32(0x7FFFFFFF)
SMALL = 1 << 16


def above(
    values: Tensor, added: Tensor | None, low: int, clear: bool = False
) -> tuple[Tensor, Tensor]:
    array = values.float().numpy()
    addend, add = (array, False) if added is None else (added.float().numpy(), True)
    room = len(array) // 8 + TILE  # the usual number; repeated with more room if there are more
    while True:
        indices, chosen = np.empty(room, np.int64), np.empty(room, np.float32)
        count, stored = find_above(array, addend, add, np.int32(low), clear, indices, chosen)
        if count == stored:
            return checked(indices[:count], chosen[:count])
        # The sum stays in `values`, but cleared entries must be there for the next pass.
        if clear:
            array[indices[:stored]] = chosen[:stored]
        room, add = count + TILE, False


def by_sample(
    values: Tensor, added: Tensor | None, sample: range, rank: int, bounds: Bounds
) -> tuple[Tensor, Tensor]:
    array = values.float().numpy()
    addend, add = (array, False) if added is None else (added.float().numpy(), True)
    indices, chosen = room_for(len(array))
    places = sample.start, sample.step, len(sample), rank
    count, low, lowered = add_and_adapt(array, addend, add, places, tuple(bounds), indices, chosen)
    return adapted_entries(values, (count, low, lowered), bounds, indices, chosen)


def room_for(entries: int) -> tuple[Indices, Floats]:
    """Returns room for the usual number of entries above a threshold that is adapted."""
    # All of a small vector: there a lowered threshold may find many.
    room = max(entries // 8, min(entries, SMALL)) + TILE
    return np.empty(room, np.int64), np.empty(room, np.float32)


def adapted_entries(
    values: Tensor, found: tuple[int, int, int], bounds: Bounds, indices: Indices, chosen: Floats
) -> tuple[Tensor, Tensor]:
    """Returns what `lower_and_cut` selected, or what it had no room for."""
    count, low, lowered = found
    if count > indices.size:
        left = bounds._replace(iterations=bounds.iterations - lowered)
        return adapted(lambda bits: above(values, None, bits), low, left)
    return checked(indices[:count], chosen[:count])


def checked(indices: Indices, entries: Floats) -> tuple[Tensor, Tensor]:
    """Returns the selected entries after a check that they are finite."""
    if most_bits(entries.view(np.int32)) >= INFINITY:
        raise ValueError("NaN or infinity")
    return torch.from_numpy(indices), torch.from_numpy(entries)


def largest_bits(values: Tensor) -> int:
    return int(most_bits(values.float().numpy().view(np.int32)))


def magnitudes(values: Tensor, added: Tensor | None, positions: Tensor) -> Tensor:
    sizes = torch.empty(len(positions))
    addend = (values if added is None else added).float().numpy()
    gather(values.float().numpy(), addend, added is not None, positions.numpy(), sizes.numpy())
    return sizes.view(torch.int32)


def kth_largest(values: Tensor, k: int) -> tuple[int, int]:
    bits, higher = find_kth(values.numpy(), k)
    return int(bits), int(higher)


def first_largest(indices: Tensor, entries: Tensor, k: int) -> tuple[Tensor, Tensor]:
    chosen, values = torch.empty(k, dtype=torch.int64), torch.empty(k)
    array = entries.numpy()
    low, higher = find_kth(array.view(np.int32), k)
    take(indices.numpy(), array, low, k - higher, chosen.numpy(), values.numpy())
    return chosen, values


def add_at(out: Tensor, indices: Tensor, values: Tensor, scale: float) -> None:
    scatter(out.numpy(), indices.numpy(), values.numpy(), scale)


def add_sets(
    out: Tensor, indices: Tensor, values: Tensor, counts: Sequence[int], scale: float
) -> None:
    add_at(out, indices, values, scale)  # in their order, across all sets


def chunk_sums(values: Tensor, added: Tensor | None, chunk: int) -> Tensor:
    sums = torch.empty(-(-len(values) // chunk), dtype=torch.float64)
    addend = (values if added is None else added).float().numpy()
    sum_chunks(values.float().numpy(), addend, added is not None, chunk, sums.numpy())
    return sums


@jit
def add_up(values: Floats, added: Floats) -> None:
    """Adds in place. Called a tile at a time, so that the next loop finds it in the cache."""
    for i in range(values.size):
        values[i] += added[i]


@jit
def find_above(
    values: Floats,
    added: Floats,
    add: bool,
    low: np.int32,
    clear: bool,
    indices: Indices,
    chosen: Floats,
) -> tuple[int, int]:
    """Finds the entries with magnitude bits >= low, after adding `added` if `add` is True.

    Returns:
        The number of these entries, and the number that was stored, the first of them (and
        cleared, if `clear` is True); there may be room for fewer.
    """
    count = stored = 0
    for start in range(0, values.size, TILE):
        part = values[start : start + TILE]
        if add:
            add_up(part, added[start : start + TILE])
        bits = part.view(np.int32)
        room = count + TILE <= indices.size  # for the whole tile, so that its loops do not check
        whole = part.size // LANES * LANES
        for block in range(0, whole, LANES):
            if largest_lane(bits[block : block + LANES]) < low:  # nearly always
                continue
            if room:
                # Always written, and counted if it is above: no branch.
                for j in range(block, block + LANES):
                    indices[count] = start + j
                    count += int(np.int32(bits[j] & MAGNITUDE) >= low)
            else:
                for j in range(block, block + LANES):
                    count += int(np.int32(bits[j] & MAGNITUDE) >= low)
        for j in range(whole, part.size):
            if room:
                indices[count] = start + j
            count += int(np.int32(bits[j] & MAGNITUDE) >= low)
        if room:
            for c in range(stored, count):
                chosen[c] = part[indices[c] - start]
                if clear:
                    part[indices[c] - start] = 0
            stored = count
    return count, stored


@jit
def largest_lane(bits: Bits) -> np.int32:
    """Returns `most_bits` of exactly LANES numbers: a loop of a fixed size is faster."""
    peak = np.int32(0)
    for i in range(LANES):
        peak = max(peak, np.int32(bits[i] & MAGNITUDE))
    return peak


@jit
def add_and_adapt(
    values: Floats,
    added: Floats,
    add: bool,
    sample: tuple[int, int, int, int],
    bounds: tuple[int, float, float, int],
    indices: Indices,
    chosen: Floats,
) -> tuple[int, int, int]:
    """Selects as `by_sample`, in one call: for a small layer calls take longer than their loops.

    `sample` has its start, stride and size, and the rank of the threshold; `bounds` is a tuple,
    which is faster to pass than `Bounds`.

    Returns: as `lower_and_cut`.
    """
    start, stride, samples, rank = sample
    sizes = np.empty(samples, np.float32)
    strided(values, start, stride, sizes)
    if add:
        more = np.empty(samples, np.float32)
        strided(added, start, stride, more)
        add_up(sizes, more)
    low = max(1, find_kth(sizes.view(np.int32), rank)[0])
    count, stored = find_above(values, added, add, np.int32(low), False, indices, chosen)
    return lower_and_cut(values, (count, stored), low, bounds, indices, chosen)


@jit
def strided(vector: Floats, start: int, stride: int, picked: Floats) -> None:
    """Copies entries at a constant stride, all below the size."""
    for i in range(picked.size):
        picked[i] = vector[np.uint64(start + i * stride)]


@jit
def lower_and_cut(
    values: Floats,
    found: tuple[int, int],
    low: int,
    bounds: tuple[int, float, float, int],
    indices: Indices,
    chosen: Floats,
) -> tuple[int, int, int]:
    """Adapts the threshold after a first search, as `kernels.selection.adapted`.

    Returns:
        The number of selected entries, the bits of the last threshold, and how often it was
        lowered. A number above the size of `indices` says that there was no room for all.
    """
    wanted, lower, upper, iterations = bounds
    (count, stored), lowered = found, 0
    while count == stored and lowered < iterations and count < lower * wanted and low > 1:
        low = max(1, scaled_bits(low, np.float32(lower)))
        lowered += 1
        count, stored = find_above(values, values, False, np.int32(low), False, indices, chosen)
    if count > stored:
        return indices.size + 1, low, lowered
    if count > upper * wanted:
        bits, higher = find_kth(chosen[:count].view(np.int32), wanted)
        # An entry moves to its own place or to an earlier one, so that none is lost.
        take(indices[:count], chosen[:count], bits, wanted - higher, indices, chosen)
        count = wanted
    return count, low, lowered


@jit
def scaled_bits(bits: int, factor: np.float32) -> int:
    """Returns the bits of a magnitude times a factor, as the function of the package."""
    product = np.empty(1, np.int32)
    product[0] = bits
    magnitude = product.view(np.float32)
    magnitude[0] *= factor
    return int(product[0])


@jit
def find_kth(bits: Bits, k: int) -> tuple[int, int]:
    """Finds the k-th largest magnitude of float32 numbers given as int32, from three digits, the
    high digit first.

    Returns:
        The bits of the magnitude, and the number of entries above it.
    """
    # Radix selection: each pass counts the next digit of entries with the k-th's digits so far.
    # Counters of 11 bits fit in the nearest cache.
    prefix, rank = 0, k
    for shift, width in ((20, 11), (9, 11), (0, 9)):
        counts = np.zeros(1 << width, np.int64)
        digit = (1 << width) - 1
        for i in range(bits.size):
            magnitude = np.int64(bits[i] & MAGNITUDE)
            if magnitude >> (shift + width) == prefix:
                counts[(magnitude >> shift) & digit] += 1
        at = digit
        while counts[at] < rank:
            rank -= counts[at]
            at -= 1
        prefix = (prefix << width) | at
    return prefix, k - rank


@jit
def take(
    indices: Indices, entries: Floats, low: int, ties: int, chosen: Indices, values: Floats
) -> None:
    """Selects the entries with more bits than `low`, and the first `ties` of those with as many."""
    bits, count = entries.view(np.int32), 0
    for i in range(bits.size):
        magnitude = np.int64(bits[i] & MAGNITUDE)
        if magnitude < low or (magnitude == low and ties == 0):
            continue
        ties -= int(magnitude == low)
        chosen[count], values[count] = indices[i], entries[i]
        count += 1


@jit
def gather(values: Floats, added: Floats, add: bool, positions: Indices, sizes: Floats) -> None:
    """Returns the magnitudes at positions below the size, of the sum on request."""
    for i in range(positions.size):
        sizes[i] = values[np.uint64(positions[i])]
    if add:  # two loops: each keeps as many reads from memory in flight as there can be
        for i in range(positions.size):
            sizes[i] += added[np.uint64(positions[i])]
    for i in range(sizes.size):
        sizes[i] = abs(sizes[i])


@jit
def most_bits(bits: Bits) -> np.int32:
    """Returns the bits of the largest magnitude of float32 numbers given as int32."""
    largest = np.int32(0)
    for i in range(bits.size):
        largest = max(largest, np.int32(bits[i] & MAGNITUDE))
    return largest


@jit
def scatter(out: Floats, indices: Indices, values: Floats, scale: float) -> None:
    factor = np.float32(scale)
    for i in range(indices.size):
        out[indices[i]] += factor * values[i]


@jit
def sum_chunks(
    values: Floats, added: Floats, add: bool, chunk: int, sums: NDArray[np.float64]
) -> None:
    """Computes the L1 norm of each run of `chunk` entries, after adding `added` on request."""
    lanes = np.zeros(8)  # sums side by side: the compiler may not reorder one
    for number in range(sums.size):
        part = values[number * chunk : (number + 1) * chunk]
        if add:
            add_up(part, added[number * chunk : (number + 1) * chunk])
        lanes[:] = 0
        whole = part.size // 8 * 8
        for i in range(0, whole, 8):
            for j in range(8):
                lanes[j] += abs(np.float64(part[i + j]))
        for i in range(whole, part.size):
            lanes[0] += abs(np.float64(part[i]))
        sums[number] = lanes.sum()
