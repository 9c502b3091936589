"""Word vectors in word2vec's text format: `WORDS DIMENSION`, then a word and its numbers a line.

Mikolov et al., "Distributed Representations of Words and Phrases", NIPS 2013.
"""

from pathlib import Path
from typing import Final

import torch
from jaxtyping import Float
from torch import Tensor

from atomo.errors import DataError
from atomo.workloads.lines import digits, line_error, quoted, read_lines

__all__ = ["dimension_of", "read_vectors"]

WIDEST: Final = 16_384  # numbers a word; published vectors have at most some hundreds


def dimension_of(path: Path) -> int:
    """Returns the numbers that each word has, by the first line.

    Raises:
        DataError: the file is not there, or its first line is wrong.
    """
    return header(path)[1]


def header(path: Path) -> tuple[int, int]:
    """Reads the number of words, and the numbers of each."""
    first = next(iter(read_lines(path)), "")
    parts = first.split()
    if len(parts) != 2 or not all(map(digits, parts)):
        reason = f"{quoted(first)}; expected two whole numbers, of words and of numbers each"
        raise line_error(path, 1, reason)
    words, dimension = map(int, parts)
    if not 1 <= dimension <= WIDEST:
        raise line_error(path, 1, f"{dimension} numbers a word; must be 1 to {WIDEST}")
    return words, dimension


def read_vectors(path: Path, wanted: set[str]) -> dict[str, Float[Tensor, " d"]]:
    """Returns the vectors of those words that the file has.

    Raises:
        DataError: a line is not a word and its numbers, or there are fewer lines than announced.
    """
    words, dimension = header(path)
    vectors: dict[str, Tensor] = {}
    number = 1
    for number, line in enumerate(read_lines(path), 1):
        word, *numbers = line.rstrip(" ").rsplit(" ", dimension)
        if number > 1 and word in wanted:
            vectors[word] = vector(numbers, dimension, path, number)
    if number - 1 != words:
        raise DataError(f"{path} has {number - 1} words, and {words} in its first line")
    return vectors


def vector(texts: list[str], dimension: int, path: Path, number: int) -> Float[Tensor, " d"]:
    if len(texts) != dimension:
        raise line_error(path, number, f"{len(texts)} numbers after the word; must be {dimension}")
    try:
        values = torch.tensor([float(text) for text in texts])
    except ValueError as error:
        raise line_error(path, number, f"not a number: {error}") from error
    if not values.isfinite().all():
        raise line_error(path, number, "a number is not finite")
    return values
