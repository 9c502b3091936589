"""Parser of the section tables of many valid frames together.

`wire.sections` defines the tables and describes their errors. This kernel accepts or rejects the
tables of a whole batch; the caller passes a rejected table to `wire.sections`, which raises the
error.
"""

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from atomo.kernels.tables.cpu import Expected, read_all

__all__ = ["Expected", "SectionTables", "find_sections"]


@final
@dataclass(frozen=True)
class SectionTables:
    """The parsed section tables of frames with the same number of sections each."""

    valid: NDArray[np.bool_]
    """True for each valid frame; the rest of this record is undefined for others."""
    starts: NDArray[np.int64]
    """The position of the first section of each frame."""
    stored: NDArray[np.int64]
    """The bytes of each section of each frame."""
    compressed: NDArray[np.bool_]
    """True for each section that blosc has compressed."""
    sides: NDArray[np.int64]
    """All dimensions of all sections of each frame."""


def find_sections(
    heads: NDArray[np.uint8], sizes: NDArray[np.int64], expected: Expected, fixed: int, gain: int
) -> SectionTables:
    """Parses the section tables of frames.

    Args:
        heads: the bytes of each frame after its fixed part, at least the whole of a valid table.
        sizes: the bytes of each frame.
        expected: the accepted layout.
        fixed: the bytes of the fixed part.
        gain: the largest ratio of the size of a section to its stored bytes.
    """
    frames, sections = len(heads), len(expected.codes)
    tables = SectionTables(
        np.zeros(frames, np.bool_),
        np.zeros(frames, np.int64),
        np.zeros((frames, sections), np.int64),
        np.zeros((frames, sections), np.bool_),
        np.zeros((frames, len(expected.max_sides)), np.int64),
    )
    read_all(heads, sizes, *expected, fixed, gain, tables.valid, tables.starts, tables.stored,
             tables.compressed, tables.sides)  # fmt: skip
    return tables
