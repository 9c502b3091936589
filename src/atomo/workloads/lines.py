"""Lines of text files; errors name the file, the line and the value."""

from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Final

from atomo.core.safe_read import open_plain
from atomo.errors import DataError

__all__ = ["digits", "first_folder", "line_error", "quoted", "read_lines"]

LONGEST: Final = 2**30  # bytes of a line: some corpora have all of their text in one
SHOWN: Final = 60  # characters of a wrong value in an error


def first_folder(folders: Sequence[Path]) -> Path:
    """Returns the first of these folders that exists; if none does, the first of all."""
    return next((folder for folder in folders if folder.is_dir()), folders[0])


def read_lines(path: Path) -> Iterator[str]:
    """Yields the lines of a file in UTF-8, without their ends.

    Raises:
        DataError: the file cannot be read, or a line is not UTF-8, or longer than `LONGEST`.
    """
    try:
        with open_plain(path, linked=True) as file:
            for number in count(1):
                if not (line := file.readline(LONGEST + 1)):
                    return
                if len(line) > LONGEST:
                    raise line_error(path, number, f"more than {LONGEST} bytes")
                yield decoded(line, path, number).rstrip("\r\n")
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error


def decoded(line: bytes, path: Path, number: int) -> str:
    try:
        return line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        wrong = line[error.start]
        raise line_error(
            path, number, f"byte {wrong:#04x} at {error.start + 1} is not UTF-8"
        ) from error


def line_error(path: Path, number: int, reason: str) -> DataError:
    """Returns the error for one line, counted from 1."""
    return DataError(f"{path}, line {number}: {reason}")


def quoted(text: str) -> str:
    """Returns a value as an error shows it, cut where it is long."""
    return repr(text if len(text) <= SHOWN else f"{text[:SHOWN]}...")


def digits(text: str) -> bool:
    """Returns True for a whole number from 0 that is not so long that nothing could be."""
    return text.isascii() and text.isdigit() and len(text) < 20
