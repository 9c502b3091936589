"""Tensors joined in one vector in Triton, in one launch however many. Contracts: `kernels/peaks`.

Programs read the place of their tensor from a table: its address, which the host knows without a
look at the device. Each block is read once, and the largest of each tensor is an atomic maximum,
which has no order.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
import triton.language as tl
from torch import Tensor

from atomo.core.devices import to_device
from atomo.kernels.blocks.cuda import magnitudes_of
from atomo.kernels.triton_jit import EXACT, device_code

__all__ = ["join", "largest", "largest_in"]

BLOCK: Final = 4096
KINDS: Final = (torch.float32, torch.bfloat16, torch.float16)


def join(sources: Sequence[Tensor], out: Tensor, scale: float) -> list[int]:
    return peaks_of(sources, out, scale)


def largest(sources: Sequence[Tensor]) -> list[int]:
    return peaks_of(sources, None, 1.0)


def largest_in(vector: Tensor, starts: Sequence[int], stops: Sequence[int]) -> list[int]:
    places = map(slice, starts, stops)
    return largest([vector[place] for place in places])


def peaks_of(sources: Sequence[Tensor], out: Tensor | None, scale: float) -> list[int]:
    """Computes the largest magnitude of each tensor over `scale`; fills `out` if it is given."""
    # Referenced until the launch, so that the allocator does not reuse their memory before it.
    read = [readable(source) for source in sources]
    sizes = np.array([tensor.numel() for tensor in read], np.int64)
    blocks = -(-sizes // BLOCK)
    addresses, kinds = (
        [tensor.data_ptr() for tensor in read],
        [KINDS.index(tensor.dtype) for tensor in read],
    )
    begins, firsts = np.cumsum(sizes) - sizes, np.cumsum(blocks) - blocks
    table = np.stack([addresses, sizes, begins, firsts, kinds], 1).astype(np.int64)
    owners = np.repeat(np.arange(len(read)), blocks)
    device = read[0].device
    layout = to_device(torch.from_numpy(np.concatenate([table.ravel(), owners])), device)
    peaks = torch.zeros(len(read), dtype=torch.int32, device=device)
    if len(owners):
        parts = layout[: table.size], layout[table.size :], peaks, peaks if out is None else out
        constants = {"DIVIDE": scale != 1, "COPY": out is not None, "BLOCK": BLOCK}
        join_blocks[(len(owners),)](*parts, scale, **constants, **EXACT)
    bits: list[int] = peaks.tolist()  # the only wait
    return bits


def readable(source: Tensor) -> Tensor:
    """Returns a tensor in the layout that the kernel reads, in most cases unchanged."""
    return (source if source.dtype in KINDS else source.float()).contiguous()


@device_code
def widened(vector, place, inside):
    """Loads entries of a vector as float32."""
    return tl.load(vector + place, mask=inside, other=0.0).to(tl.float32)


@device_code
def join_blocks(
    table, owners, peaks, out, scale,
    DIVIDE: tl.constexpr, COPY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0).to(tl.int64)
    number = tl.load(owners + block)
    row = table + number * 5
    address, kind = tl.load(row), tl.load(row + 4)
    place = (block - tl.load(row + 3)) * BLOCK + tl.arange(0, BLOCK)
    inside = place < tl.load(row + 1)
    if kind == 0:
        entry = widened(address.to(tl.pointer_type(tl.float32)), place, inside)
    elif kind == 1:
        entry = widened(address.to(tl.pointer_type(tl.bfloat16)), place, inside)
    else:
        entry = widened(address.to(tl.pointer_type(tl.float16)), place, inside)
    if DIVIDE:
        entry = tl.div_rn(entry, tl.zeros([BLOCK], tl.float32) + scale)
    if COPY:
        tl.store(out + tl.load(row + 2) + place, entry, mask=inside)
    tl.atomic_max(peaks + number, tl.max(magnitudes_of(entry)))
