"""Tokens of lines, divided by white space or by a tokeniser from a file."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from atomo.core.distribution import install_command
from atomo.core.safe_read import MAX_JSON_BYTES, read_text
from atomo.errors import DataError, MissingPackage

__all__ = ["Tokenise", "token_splitter"]

Tokenise = Callable[[str], list[str]]


def token_splitter(path: Path | None) -> Tokenise:
    """Returns a function that divides a line into tokens.

    Args:
        path: a tokeniser in the JSON format of `tokenizers`; None: white space.

    Raises:
        MissingPackage: the package is not installed.
        DataError: the file is not there, or is no tokeniser.
    """
    return str.split if path is None else tokeniser(path)


def tokeniser(path: Path) -> Tokenise:
    """Returns a tokeniser from a file, without the special tokens that it would add
    around a line.
    """
    if not path.is_file():
        raise DataError(f"{path} is not there; expected a tokeniser of `tokenizers`, in JSON")
    made = loaded(path)
    made.no_truncation()
    made.no_padding()

    def divide(line: str) -> list[str]:
        with explained(path):
            return list(made.encode(line, add_special_tokens=False).tokens)

    return divide


def loaded(path: Path) -> Any:
    """Reads a tokeniser."""
    try:
        package: Any = import_module("tokenizers")
    except ImportError as error:
        raise MissingPackage(
            f"{path} needs the package tokenizers ({error}); `{install_command('text')}` brings it"
        ) from error
    with explained(path):
        return package.Tokenizer.from_str(read_text(path, MAX_JSON_BYTES))


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Translates errors of the package, also those of a line that a tokeniser cannot divide."""
    try:
        yield
    except Exception as error:  # the package raises nothing more special
        reason = " ".join(str(error).split())[:300]
        raise DataError(f"{path} is no tokeniser of `tokenizers`: {reason}") from error
