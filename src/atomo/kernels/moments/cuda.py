"""Largest magnitudes and sums of squares in Triton. Contracts: `kernels/moments`."""

from typing import Final

import triton.language as tl
from torch import Tensor, float64

from atomo.kernels.triton_jit import EXACT, device_code

__all__ = ["run_moments"]

BLOCK: Final = 1024
PIECE: Final = 16 * BLOCK  # entries of a run that one program looks at


def run_moments(values: Tensor, row: int) -> tuple[Tensor, Tensor]:
    """Computes the largest magnitude of each run of `row` entries, NaN if there is one, and the sum
    of squares.

    The sums are of float64, which holds the square of any float32.
    """
    row = max(1, min(row, len(values)))
    runs, pieces = -(-len(values) // row), -(-row // PIECE)
    parts = values.new_empty(2, runs, pieces, dtype=float64)
    # Short runs share a program, and long runs are cut in pieces: a program always has BLOCK lanes.
    lanes = min(1 << (row - 1).bit_length(), BLOCK)
    number = runs * pieces
    if number:
        sizes = len(values), row, pieces, number, -(-min(row, PIECE) // lanes)
        constants = {"PIECE": PIECE, "RUNS": BLOCK // lanes, "LANES": lanes}
        sum_pieces[(-(-number // (BLOCK // lanes)),)](values, parts, *sizes, **constants, **EXACT)
    return parts[0].amax(1), parts[1].sum(1)


@device_code
def sum_pieces(
    values,
    parts,
    entries,
    row,
    pieces,
    count,
    blocks,
    PIECE: tl.constexpr,
    RUNS: tl.constexpr,
    LANES: tl.constexpr,
):
    number = tl.program_id(0).to(tl.int64) * RUNS + tl.arange(0, RUNS)
    run = number // pieces
    start = run * row + number % pieces * PIECE
    stop = tl.minimum(tl.minimum(start + PIECE, (run + 1) * row), entries)
    peaks = tl.zeros([RUNS, LANES], tl.int32)
    squares = tl.zeros([RUNS, LANES], tl.float64)
    for block in range(blocks):
        places = start[:, None] + block * LANES + tl.arange(0, LANES)[None, :]
        entry = tl.load(values + places, mask=places < stop[:, None], other=0.0).to(tl.float32)
        peaks = tl.maximum(peaks, entry.to(tl.int32, bitcast=True) & 0x7FFFFFFF)
        wide = entry.to(tl.float64)
        squares += wide * wide
    largest = tl.max(peaks, 1).to(tl.float32, bitcast=True).to(tl.float64)
    tl.store(parts + number, largest, mask=number < count)
    tl.store(parts + count + number, tl.sum(squares, 1), mask=number < count)
