"""The format of the Extreme Classification Repository (Bhatia et al., 2016).

A header `N D L` (samples, features, labels), then a sample a line: `l1,l2 f:v f:v ...`, both
numbered from 0. A sample without labels begins with a blank. A split file has, on each line,
numbers of samples from 1; its columns are different splits, of which the first is taken.
"""

from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Final, final

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from atomo.workloads.labels.bags import Bags
from atomo.workloads.lines import digits, line_error, quoted, read_lines

__all__ = ["LabelTable", "read_samples", "read_split_file"]

MOST: Final = 2**31 - 1  # of each number in a header


@final
@dataclass(frozen=True, eq=False)
class LabelTable:
    """A file of samples."""

    bags: Bags
    features: int
    labels: int
    source: Path


def read_samples(path: Path) -> LabelTable:
    """Reads a file of samples.

    Raises:
        DataError: the file is not there, the header is wrong, a line is no sample, a number is out
            of the range that the header gives, or the number of lines differs from the header.
    """
    rows = read_lines(path)
    samples, features, labels = header(next(rows, ""), path)
    read = [sample(row, features, labels, path, number) for number, row in enumerate(rows, 2)]
    if len(read) != samples:
        raise line_error(
            path, 1, f"the header says {samples} samples, and the file has {len(read)}"
        )
    return LabelTable(join_samples(read), features, labels, path)


def header(line: str, path: Path) -> tuple[int, int, int]:
    parts = line.split()
    if len(parts) != 3 or not all(map(digits, parts)):
        reason = f"{quoted(line)}; expected N D L: numbers of samples, features and labels"
        raise line_error(path, 1, reason)
    samples, features, labels = map(int, parts)
    if not all(1 <= number <= MOST for number in (samples, features, labels)):
        raise line_error(path, 1, f"{quoted(line)}; each number must be 1 to {MOST}")
    return samples, features, labels


Row = tuple[np.ndarray, np.ndarray, np.ndarray]  # labels, features, values


def sample(line: str, features: int, labels: int, path: Path, number: int) -> Row:
    """Returns one sample."""
    head, _, pairs_text = line.partition(" ")
    if ":" in head:  # no labels, and no blank in their place either
        head, pairs_text = "", line
    own = whole(head.split(",") if head else [], labels, "label", path, number)
    pairs = [pair.partition(":") for pair in pairs_text.split()]
    indices = whole([index for index, _, _ in pairs], features, "feature", path, number)
    return own, indices, weights([value for _, _, value in pairs], path, number)


def whole(texts: list[str], bound: int, noun: str, path: Path, number: int) -> np.ndarray:
    """Parses whole numbers from 0 to below a bound."""
    if not texts:
        return np.empty(0, dtype=np.int64)
    if not all(map(digits, texts)) or max(map(int, texts)) >= bound:
        wrong = next(text for text in texts if not digits(text) or int(text) >= bound)
        raise line_error(
            path, number, f"{noun} {quoted(wrong)}; must be a whole number, 0 to {bound - 1}"
        )
    return np.array([int(text) for text in texts], dtype=np.int64)


def weights(texts: list[str], path: Path, number: int) -> np.ndarray:
    """Parses the value of each feature."""
    try:
        with np.errstate(over="ignore"):  # it is refused below, with its line
            values = np.array([float(text) for text in texts], dtype=np.float32)
    except ValueError as error:
        raise line_error(path, number, f"the value of a feature: {error}") from error
    if not np.isfinite(values).all():
        raise line_error(path, number, "the value of a feature is not finite in float32")
    return values


def join_samples(rows: list[Row]) -> Bags:
    """Returns all rows, end to end."""
    labels, features, values = ([row[part] for row in rows] for part in range(3))
    return Bags(
        torch.from_numpy(np.concatenate(features)),
        torch.from_numpy(np.concatenate(values)),
        starts(features),
        torch.from_numpy(np.concatenate(labels)),
        starts(labels),
    )


def starts(rows: list[np.ndarray]) -> Int64[Tensor, " n_plus_1"]:
    return torch.tensor(list(accumulate(map(len, rows), initial=0)))


def read_split_file(path: Path, samples: int) -> Int64[Tensor, " n"]:
    """Returns the rows that a split file names, from 0.

    Raises:
        DataError: a number is out of range or there twice, or there is none.
    """
    firsts = [line.split()[:1] for line in read_lines(path)]
    words = [word for first in firsts for word in first]
    if len(words) != len(firsts) or not words:
        number = next((i for i, first in enumerate(firsts, 1) if not first), 1)
        raise line_error(path, number, "an empty line; expected the number of a sample")
    for number, word in enumerate(words, 1):
        if not (digits(word) and 1 <= int(word) <= samples):
            raise line_error(path, number, f"{quoted(word)} is no sample; must be 1 to {samples}")
    rows = torch.tensor([int(word) - 1 for word in words])
    if len(set(words)) != len(words):
        twice = next(i for i, word in enumerate(words, 1) if word in words[: i - 1])
        raise line_error(path, twice, f"sample {words[twice - 1]} is there twice")
    return rows
