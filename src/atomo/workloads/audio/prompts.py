"""Texts of recordings: `prompts.txt`, SPEAKER_NUMBER TEXT, a recording a line."""

import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import final

from atomo.errors import DataError
from atomo.workloads.lines import line_error, quoted, read_lines

__all__ = ["Prompt", "read_prompts"]


@final
@dataclass(frozen=True)
class Prompt:
    """One recording."""

    path: Path
    speaker: str
    text: str
    """In Unicode's composed form (NFC), its words divided by one space; may be empty."""
    source: Path
    line: int
    """Line of `source`, counted from 1."""

    def error(self, reason: str) -> DataError:
        """Returns the error for this line."""
        return line_error(self.source, self.line, reason)


def read_prompts(folder: Path) -> list[Prompt]:
    """Returns the recordings of a split, in the order of its list; opens no recording.

    Raises:
        DataError: the list is missing, is empty, or has a line that names no recording.
    """
    if not folder.is_dir():
        raise DataError(
            f"{folder} is not there; expected {folder.name}/prompts.txt, {folder.name}/genders.txt "
            f"and {folder.name}/waves/SPEAKER/SPEAKER_NUMBER.wav"
        )
    source = folder / "prompts.txt"
    prompts = [prompt(folder, source, n, line) for n, line in enumerate(read_lines(source), 1)]
    if not prompts:
        raise DataError(f"{source} is empty; it must name a recording a line")
    return prompts


def prompt(folder: Path, source: Path, number: int, line: str) -> Prompt:
    name, *words = line.split() or [""]
    speaker, _, recording = name.rpartition("_")
    if not speaker or not recording:
        raise line_error(
            source, number, f"{quoted(name)} is no SPEAKER_NUMBER, with which a line begins"
        )
    path = folder / "waves" / speaker / f"{name}.wav"
    return Prompt(path, speaker, unicodedata.normalize("NFC", " ".join(words)), source, number)
