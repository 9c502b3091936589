"""The section tables of many frames at once, where frames are as they should be.

`wire.sections` says what a table is and what is wrong with one. Here is the same for those of a
batch in one go; one that this does not accept is for `wire.sections` to judge.
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

    believed: NDArray[np.bool_]
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
        heads: the first bytes of each frame behind its fixed part: all of its table, if it is one.
        sizes: the bytes of each frame.
        expected: what is accepted.
        fixed: the bytes of the fixed part.
        gain: the largest size of a section over what is stored of it.
    """
    frames, sections = len(heads), len(expected.codes)
    found = SectionTables(
        np.zeros(frames, np.bool_),
        np.zeros(frames, np.int64),
        np.zeros((frames, sections), np.int64),
        np.zeros((frames, sections), np.bool_),
        np.zeros((frames, len(expected.most)), np.int64),
    )
    read_all(heads, sizes, *expected, fixed, gain, found.believed, found.starts, found.stored,
             found.compressed, found.sides)  # fmt: skip
    return found
