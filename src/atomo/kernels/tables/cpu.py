"""Section tables read by numba. Contract: `kernels/tables`."""

from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from atomo.kernels.jit import jit

__all__ = ["Expected", "read_all"]

Integers = NDArray[np.int64]
Truths = NDArray[np.bool_]

LONGEST = 9  # bytes of an integer: 63 bits
ALIGNMENT = 8
NONE = -1


@final
class Expected(NamedTuple):
    """The accepted layout of each section. The product of the largest sides fits in 63 bits."""

    codes: Integers
    """The number of the dtype in a frame."""
    item_sizes: Integers  # bytes
    dimensions: Integers
    max_entries: Integers
    """The largest product of the sides."""
    max_sides: Integers
    """The largest sides of all sections, one after the other."""


@jit
def varint(head: NDArray[np.uint8], at: int) -> tuple[np.int64, int]:
    """Decodes the integer that starts at a byte; returns it and the position of the next; NONE if
    it is invalid.
    """
    value = np.int64(0)
    for place in range(LONGEST):
        if at + place >= head.size:
            return np.int64(NONE), at
        byte = np.int64(head[at + place])
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value, at + place + 1
    return np.int64(NONE), at


@jit
def read_all(
    heads: NDArray[np.uint8],
    sizes: Integers,
    codes: Integers,
    item_sizes: Integers,
    dimensions: Integers,
    max_entries: Integers,
    max_sides: Integers,
    fixed: int,
    gain: int,
    valid: Truths,
    starts: Integers,
    stored: Integers,
    compressed: Truths,
    sides: Integers,
) -> None:
    """Reads the table of each frame."""
    for i in range(sizes.size):
        at = read(heads[i], sizes[i], codes, item_sizes, dimensions, max_entries, max_sides, gain,
                  stored[i], compressed[i], sides[i])  # fmt: skip
        if at == NONE:
            continue
        start = (fixed + at + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        starts[i] = start
        valid[i] = start + stored[i].sum() == sizes[i]  # each is no more than the frame


@jit
def read(
    head: NDArray[np.uint8],
    size: int,
    codes: Integers,
    item_sizes: Integers,
    dimensions: Integers,
    max_entries: Integers,
    max_sides: Integers,
    gain: int,
    stored: Integers,
    compressed: Truths,
    sides: Integers,
) -> int:
    """Reads the table of a frame of `size` bytes; where it ends, or NONE."""
    description, at = varint(head, 0)
    count, at = varint(head, at)
    if description != 0 or count != codes.size:
        return NONE
    side = 0
    for number in range(codes.size):
        if at + 3 > head.size:
            return NONE
        storage = head[at + 1]
        if head[at] != codes[number] or storage > 1 or head[at + 2] != dimensions[number]:
            return NONE
        at += 3
        product = 1
        for _ in range(dimensions[number]):
            sides[side], at = varint(head, at)
            if not 0 <= sides[side] <= max_sides[side]:
                return NONE
            product *= sides[side]
            side += 1
        stored[number], at = varint(head, at)
        compressed[number] = storage == 1
        if product > max_entries[number] or not 0 <= stored[number] <= size:
            return NONE
        bytes_ = product * item_sizes[number]
        if (storage == 0 and stored[number] != bytes_) or bytes_ > gain * stored[number]:
            return NONE
    return at
