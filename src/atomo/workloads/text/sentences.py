"""Sentences and their classes, in the layout of the Vietnamese benchmarks.

    {train,val,test}/sents.txt        a sentence a line
    {train,val,test}/sentiments.txt   its class, on the same line; or topics.txt, ...

Nguyen et al., "UIT-VSFC: Vietnamese Students' Feedback Corpus for Sentiment Analysis", KSE 2018.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import torch
from jaxtyping import Int64
from torch import Tensor

from atomo.errors import DataError
from atomo.workloads.lines import first_folder, line_error, quoted, read_lines
from atomo.workloads.text.tokens import Tokenise

__all__ = ["CORPORA", "Sentences", "number_classes", "read_splits"]

CORPUS: Final = "UIT-VSFC"
FOLDERS: Final = (CORPUS, "_UIT-VSFC")  # the second is that of the published archive
ANY: Final = "Sentences"  # in the same layout, in the data directory itself
CORPORA: Final = (CORPUS, ANY)
SENTENCES: Final = "sents.txt"


@final
@dataclass(frozen=True)
class Sentences:
    """One split, in the order of its lines."""

    tokens: tuple[tuple[str, ...], ...]
    """The tokens of each sentence, at least one."""
    classes: tuple[str, ...]
    """The class of each sentence, as its file spells it."""
    source: Path
    """The file of the classes."""


def read_splits(
    dataset: str, data_dir: Path, labels: str, length: int, divide: Tokenise
) -> tuple[Sentences, Sentences]:
    """Reads the training and the test split.

    Args:
        dataset: one of `CORPORA`.
        data_dir: the folder that holds the data sets.
        labels: name of the file of the classes, without `.txt`.
        length: the maximum number of tokens of a sentence; later tokens are left out.
        divide: a sentence to its tokens.

    Raises:
        DataError: a folder or a file is missing or not text, a sentence is empty, or two files
            differ in length.
    """
    root = first_folder([data_dir / name for name in FOLDERS]) if dataset == CORPUS else data_dir
    train, test = (
        read_split(root, names, labels, length, divide)
        for names in (("train", "Train"), ("test", "Test"))
    )
    return train, test


def number_classes(split: Sentences, classes: Sequence[str]) -> Int64[Tensor, " n"]:
    """Returns the class of each sentence, as its place in a list.

    Raises:
        DataError: a class is not in the list.
    """
    numbers = {name: number for number, name in enumerate(classes)}
    for number, name in enumerate(split.classes, 1):
        if name not in numbers:
            reason = f"class {quoted(name)} is not one of training, {', '.join(numbers)}"
            raise line_error(split.source, number, reason[:500])
    return torch.tensor([numbers[name] for name in split.classes])


def read_split(
    root: Path, names: Sequence[str], labels: str, length: int, divide: Tokenise
) -> Sentences:
    """Reads the first of some folders that is there."""
    folder = next((root / name for name in names if (root / name).is_dir()), None)
    if folder is None:
        raise DataError(
            f"{root} has no folder {' or '.join(names)}; expected {names[0]}/{SENTENCES} with a "
            f"sentence a line and {names[0]}/{labels}.txt with the class of each"
        )
    sentences, classes = folder / SENTENCES, folder / f"{labels}.txt"
    tokens = tuple(
        split_sentence(line, divide, sentences, number)[:length]
        for number, line in enumerate(read_lines(sentences), 1)
    )
    labelled = tuple(
        one_word(line, classes, number) for number, line in enumerate(read_lines(classes), 1)
    )
    if len(tokens) != len(labelled) or not tokens:
        raise DataError(
            f"{sentences} has {len(tokens)} lines and {classes} has {len(labelled)}; both must "
            "have as many, and at least one"
        )
    return Sentences(tokens, labelled, classes)


def split_sentence(line: str, divide: Tokenise, path: Path, number: int) -> tuple[str, ...]:
    """Returns the tokens of a sentence."""
    tokens = tuple(divide(line))
    if not tokens:
        raise line_error(path, number, "an empty sentence; each line must have at least one word")
    return tokens


def one_word(line: str, path: Path, number: int) -> str:
    word = line.strip()
    if not word or len(word.split()) != 1:
        raise line_error(path, number, f"{quoted(line)} is no class; each line must be one word")
    return word
