"""Sentences and their classes, as the corpora of the Vietnamese benchmarks lie on disk.

    {train,val,test}/sents.txt        a sentence a line
    {train,val,test}/sentiments.txt   its class, on the same line; or topics.txt, ...

Nguyen et al., "UIT-VSFC: Vietnamese Students' Feedback Corpus for Sentiment Analysis", KSE 2018.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from atomo.errors import DataError
from atomo.tasks.lines import at, lines, quoted

__all__ = ["Sentences", "read_split"]

SENTENCES: Final = "sents.txt"


@final
@dataclass(frozen=True)
class Sentences:
    """One split, in the order of its lines."""

    tokens: tuple[tuple[str, ...], ...]
    """Of each sentence, at least one."""
    classes: tuple[str, ...]
    """Of each sentence, as its file spells it."""
    source: Path
    """The file of the classes."""


def read_split(root: Path, names: Sequence[str], labels: str, length: int) -> Sentences:
    """Reads the first of some folders that is there.

    Args:
        root: where the folders are.
        names: of the folder, as it may be called.
        labels: name of the file of the classes, without `.txt`.
        length: the most tokens of a sentence; what comes after them is left out.

    Raises:
        DataError: there is none, a file is missing or not text, a sentence is empty, or the two
            files differ in length.
    """
    folder = next((root / name for name in names if (root / name).is_dir()), None)
    if folder is None:
        raise DataError(
            f"{root} has no folder {' or '.join(names)}; expected {names[0]}/{SENTENCES} with a "
            f"sentence a line and {names[0]}/{labels}.txt with the class of each"
        )
    sentences, classes = folder / SENTENCES, folder / f"{labels}.txt"
    tokens = tuple(
        split(line, sentences, number, length) for number, line in enumerate(lines(sentences), 1)
    )
    found = tuple(one_word(line, classes, number) for number, line in enumerate(lines(classes), 1))
    if len(tokens) != len(found) or not tokens:
        raise DataError(
            f"{sentences} has {len(tokens)} lines and {classes} has {len(found)}; there must be as "
            "many, and at least one"
        )
    return Sentences(tokens, found, classes)


def split(line: str, path: Path, number: int, length: int) -> tuple[str, ...]:
    """The tokens of a sentence, which white space divides."""
    tokens = tuple(line.split()[:length])
    if not tokens:
        raise at(path, number, "an empty sentence; each line must have at least one word")
    return tokens


def one_word(line: str, path: Path, number: int) -> str:
    word = line.strip()
    if not word or len(word.split()) != 1:
        raise at(path, number, f"{quoted(line)} is no class; each line must be one word")
    return word
