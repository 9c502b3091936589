"""Bytes counted run by run in Triton, for frames of several workers in one launch."""

from typing import Final

import torch
import triton.language as tl
from torch import Tensor

from atomo.kernels.triton_jit import device_code

__all__ = ["counted"]

ROWS: Final = 4  # runs of a program


def counted(symbols: Tensor, code: int, run: int) -> tuple[Tensor, Tensor]:
    """Finds the largest symbol, and counts the symbols equal to `code`, above 0, in each run of
    each row.

    Args:
        symbols: a row a frame.
        code: the symbol to count.
        run: symbols in a run, a power of two; the last of a row may be shorter.
    """
    frames, size = symbols.shape
    rows = -(-size // run)
    parts = torch.zeros(2, frames, max(rows, 1), dtype=torch.int64, device=symbols.device)
    if rows:
        sizes = symbols.stride(0), size, rows, code
        grid = -(-rows // ROWS), frames
        count_rows[grid](symbols, *parts, *sizes, ROWS=ROWS, COLUMNS=run)
    return parts[0], parts[1]


@device_code
def count_rows(
    symbols, largest, counts, stride, size, rows, code, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    frame = tl.program_id(1).to(tl.int64)
    for number in tl.static_range(ROWS):
        row = tl.program_id(0).to(tl.int64) * ROWS + number
        if row < rows:
            place = row * COLUMNS + tl.arange(0, COLUMNS)
            # Entries after the end are loaded as 0, which is no escape.
            symbol = tl.load(symbols + frame * stride + place, mask=place < size, other=0)
            wide = symbol.to(tl.int32)
            tl.store(largest + frame * rows + row, tl.max(wide).to(tl.int64))
            tl.store(counts + frame * rows + row, tl.sum((wide == code).to(tl.int32)).to(tl.int64))
