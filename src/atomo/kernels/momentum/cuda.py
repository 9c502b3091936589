"""Momentum and selection in one pass, in Triton. Contracts: `kernels/momentum`.

Entries above are marked as in `kernels.selection`; its second pass moves them.
"""

import triton.language as tl
from torch import Tensor

from atomo.kernels.blocks.cuda import put, take, take_floats
from atomo.kernels.momentum import reference
from atomo.kernels.selection.cuda import BLOCK, keep_marks, marked_entries, marks_for
from atomo.kernels.triton_jit import EXACT, device_code

__all__ = ["grow_above", "grow_by_sample", "magnitudes"]

grow_by_sample = reference.grow_by_sample
magnitudes = reference.magnitudes  # of a hundredth of the entries


def grow_above(
    values: Tensor, velocity: Tensor, gradient: Tensor, factor: float, nesterov: bool, low: int
) -> tuple[Tensor, Tensor]:
    words, counts = marks_for(values)
    arguments = values, velocity, gradient, factor, low, words, counts, len(values)
    grow_and_mark[(counts.shape[1],)](*arguments, NESTEROV=nesterov, BLOCK=BLOCK, **EXACT)
    return marked_entries(values, words, counts)


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
