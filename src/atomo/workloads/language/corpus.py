"""Running text, in the layout of the corpora of language models: one file a split.

    train.txt, test.txt                        or ptb.train.txt, ptb.test.txt
    wiki.train.tokens, wiki.test.tokens        or wiki.train.raw, wiki.test.raw

Each line ends with a word of its own, `<eos>`. Marcus, Santorini and Marcinkiewicz, "Building a
Large Annotated Corpus of English: The Penn Treebank", 1993; Merity et al., "Pointer Sentinel
Mixture Models", ICLR 2017.
"""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import torch
from jaxtyping import Int32
from torch import Tensor

from atomo.errors import DataError
from atomo.workloads.lines import read_lines
from atomo.workloads.text.tokens import Tokenise

__all__ = ["END", "UNKNOWN_WORD", "Corpus", "read_corpus"]

END: Final = "<eos>"
UNKNOWN_WORD: Final = "<unk>"  # as both published corpora spell it
NAMES: Final = ("{}.txt", "ptb.{}.txt", "wiki.{}.tokens", "wiki.{}.raw")


@final
@dataclass(frozen=True, eq=False)
class Corpus:
    """Two splits, each word as its number."""

    train: Int32[Tensor, " n"]
    test: Int32[Tensor, " m"]
    words: tuple[str, ...]
    """Those of training, the frequent first; ties go by spelling."""

    @property
    def end(self) -> int:
        """The number of the word that ends a line."""
        return self.words.index(END)


def read_corpus(folder: Path, split: Tokenise, minimum: int) -> Corpus:
    """Reads the training and the test split of a folder.

    Args:
        folder: where the files are.
        split: divides a line into words.
        minimum: occurrences in training below which a word is `<unk>`.

    Raises:
        DataError: a file is missing, not text, or has no words.
    """
    path, test_path = find_split_file(folder, "train"), find_split_file(folder, "test")
    seen: dict[str, int] = {}
    first = array("i", (seen.setdefault(word, len(seen)) for word in read_words(path, split)))
    counts = torch.tensor(first, dtype=torch.int32).bincount(minlength=len(seen)).tolist()
    words = number_words(dict(zip(seen, counts, strict=True)), minimum)
    numbers = {word: number for number, word in enumerate(words)}
    unknown = numbers.get(UNKNOWN_WORD, len(words))
    anew = torch.tensor([numbers.get(word, unknown) for word in seen], dtype=torch.int32)
    train = anew[torch.tensor(first, dtype=torch.int32)]
    test = array("i", (numbers.get(word, unknown) for word in read_words(test_path, split)))
    complete = words if UNKNOWN_WORD in numbers else (*words, UNKNOWN_WORD)
    return Corpus(train, torch.tensor(test, dtype=torch.int32), complete)


def find_split_file(folder: Path, split: str) -> Path:
    """Returns the file of a split, which has one of several names."""
    paths = [folder / name.format(split) for name in NAMES]
    there = [path for path in paths if path.is_file()]
    if len(there) != 1:
        present = " and ".join(path.name for path in there) or "no file"
        expected = ", ".join(path.name for path in paths)
        raise DataError(f"{folder} has {present} for {split}; expected one of {expected}")
    return there[0]


def read_words(path: Path, split: Tokenise) -> Iterator[str]:
    """Yields the words of a file in their order, an `<eos>` after each line.

    Raises:
        DataError: the file has no words.
    """
    words = 0
    for line in read_lines(path):
        tokens = split(line)
        words += len(tokens)
        yield from tokens
        yield END
    if not words:
        raise DataError(f"{path} has no words; expected running text, one or more lines")


def number_words(counts: dict[str, int], minimum: int) -> tuple[str, ...]:
    """Returns the words that are known."""
    frequent = [
        word for word, count in counts.items() if count >= minimum or word in (END, UNKNOWN_WORD)
    ]
    return tuple(sorted(frequent, key=lambda word: (-counts[word], word)))
