"""The tensors of several frames of the same sections, for less than frame by frame.

A master reads thousands of small sections a step. The checks are those of `unpack`. A
frame with anything unusual is passed to `unpack`, which raises the exact error.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, final

import numpy as np
import torch
from torch import Tensor

from atomo.codecs.base import Field
from atomo.kernels import tables
from atomo.wire.compression import MOST_GAIN, Bytes
from atomo.wire.frame import ALIGNMENT, FIXED, restore, unpack
from atomo.wire.sections import DTYPES, MOST_DIMENSIONS, Section

__all__ = ["Sections"]

MOST_BYTES: Final = 2**62  # of a section, so that 64-bit integers can count them
LONGEST: Final = 9  # bytes of an integer


@final
@dataclass(frozen=True)
class Sections:
    """The expected sections of each of many frames."""

    fields: tuple[Field, ...]

    def unpack_all(self, frames: Sequence[Bytes]) -> list[list[Tensor]]:
        """Unpacks many frames, each with the result of `unpack`.

        Raises:
            FrameError: as `unpack` does.
        """
        if len(frames) == 1 or self._expected is None:
            return [unpack(frame, self.fields) for frame in frames]
        heads = np.zeros((len(frames), self._room), np.uint8)
        for head, frame in zip(heads, frames, strict=True):
            table = frame[FIXED.size : FIXED.size + self._room]
            head[: table.size] = table
        sizes = np.array([frame.size for frame in frames])
        headers = tables.find_sections(heads, sizes, self._expected, FIXED.size, MOST_GAIN)
        rows = zip(
            headers.starts.tolist(), headers.stored.tolist(), headers.compressed.tolist(),
            headers.sides.tolist(), strict=True,
        )  # fmt: skip
        pairs = zip(frames, headers.valid.tolist(), rows, strict=True)
        return [
            self._restored(frame, *row)
            if valid and frame.flags.writeable
            else unpack(frame, self.fields)
            for frame, valid, row in pairs
        ]

    def _restored(
        self,
        frame: Bytes,
        start: int,
        stored: Sequence[int],
        compressed: Sequence[bool],
        sides: Sequence[int],
    ) -> list[Tensor]:
        """Returns the tensors of a frame with a checked section table."""
        whole = torch.from_numpy(frame)
        bodies = whole.split_with_sizes([start, *stored])[1:]
        aligned = whole.data_ptr() % ALIGNMENT == 0
        tensors, at, side = [], start, 0
        # One iteration for each section of each worker: calls of tensor methods add up here.
        for (dtype, item_size, dimensions), body, size, packed in zip(
            self._kinds, bodies, stored, compressed, strict=True
        ):
            shape = sides[side : side + dimensions]
            if packed:
                tensor = decompressed(dtype, shape, body, size)
            elif item_size == 1:
                tensor = body if dtype is torch.uint8 else body.view(dtype)
            else:
                tensor = (body if aligned and not at % item_size else body.clone()).view(dtype)
            tensors.append(tensor if dimensions == 1 else tensor.view(shape))
            at, side = at + size, side + dimensions
        return tensors

    @cached_property
    def _kinds(self) -> list[tuple[torch.dtype, int, int]]:
        """The dtype, the bytes of an entry, and the number of dimensions of each section."""
        return [(field.dtype, field.dtype.itemsize, len(field.max_shape)) for field in self.fields]

    @cached_property
    def _room(self) -> int:
        """The bytes of the longest table."""
        rows = sum(3 + LONGEST * (len(field.max_shape) + 1) for field in self.fields)
        return 2 * LONGEST + rows

    @cached_property
    def _expected(self) -> tables.Expected | None:
        """The layout for the kernel; None if sections may be larger than the kernel can count."""
        largest = [math.prod(field.max_shape) * field.dtype.itemsize for field in self.fields]
        deepest = max((len(field.max_shape) for field in self.fields), default=0)
        if max(largest, default=0) >= MOST_BYTES or deepest > MOST_DIMENSIONS:
            return None
        caps = [
            math.prod(field.max_shape) if field.max_entries is None else field.max_entries
            for field in self.fields
        ]
        max_sides = [side for field in self.fields for side in field.max_shape]
        return tables.Expected(
            np.array([DTYPES.index(field.dtype) for field in self.fields], np.int64),
            np.array([field.dtype.itemsize for field in self.fields], np.int64),
            np.array([len(field.max_shape) for field in self.fields], np.int64),
            np.array(caps, np.int64),
            np.array(max_sides, np.int64),
        )


def decompressed(dtype: torch.dtype, shape: Sequence[int], body: Tensor, stored: int) -> Tensor:
    """Decompresses the tensor of a section."""
    section = Section(dtype, tuple(shape), math.prod(shape) * dtype.itemsize, stored, True)
    return restore(section, body.numpy().data)
