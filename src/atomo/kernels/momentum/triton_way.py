"""Momentum and selection in one pass, in Triton. Contracts: `kernels/momentum`.

What is above is marked as in `kernels/select`, whose second pass moves it.
"""

import torch
import triton.language as tl
from torch import Tensor

from atomo.kernels.blocks.triton_way import put, starts_of, take, take_floats
from atomo.kernels.momentum import torch_way
from atomo.kernels.select.triton_way import BLOCK, keep_marks, moved
from atomo.kernels.triton_jit import EXACT, device_code

__all__ = ["grow_above", "magnitudes"]

magnitudes = torch_way.magnitudes  # of a hundredth of the entries


def grow_above(
    values: Tensor, velocity: Tensor, gradient: Tensor, factor: float, nesterov: bool, low: int
) -> tuple[Tensor, Tensor]:
    blocks = -(-len(values) // BLOCK)
    words = values.new_empty(blocks * BLOCK // 32, dtype=torch.int32)
    counts = values.new_empty(blocks, dtype=torch.int64)
    arguments = values, velocity, gradient, factor, low, words, counts, len(values)
    grow_and_mark[(blocks,)](*arguments, NESTEROV=nesterov, BLOCK=BLOCK, **EXACT)
    starts = starts_of(counts)
    return moved(values, words, starts, int(starts[-1]), False)  # waits for the device


@device_code
def grow_and_mark(
    values,
    velocity,
    gradient,
    factor,
    low,
    words,
    counts,
    entries,
    NESTEROV: tl.constexpr,
    BLOCK: tl.constexpr,
):
    start = tl.program_id(0).to(tl.int64) * BLOCK
    pushed = take_floats(gradient, start, entries, BLOCK)
    speed = take(velocity, start, entries, BLOCK)
    if NESTEROV:
        speed = (speed + pushed) * factor
        entry = take(values, start, entries, BLOCK) + (speed + pushed)
    else:
        speed = speed * factor + pushed
        entry = take(values, start, entries, BLOCK) + speed
    put(velocity, start, entries, speed, BLOCK)
    put(values, start, entries, entry, BLOCK)
    keep_marks(entry, low, words, counts, BLOCK)
