"""Conversion of words from a command line or a file to values."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NoReturn

from atomo_cluster.errors import ConfigError

__all__ = ["CONVERTERS", "Parser", "flag"]

TRUTH: Final = {
    **dict.fromkeys(("yes", "true", "1", "on"), True),
    **dict.fromkeys(("no", "false", "0", "off", ""), False),
}


class Parser(argparse.ArgumentParser):
    """An argument parser that raises ConfigError instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def flag(name: str) -> str:
    """Returns the option of a setting: `--key-name` for `key_name`."""
    return "--" + name.replace("_", "-")


def truth(text: str) -> bool:
    """Parses a truth value."""
    try:
        return TRUTH[text.lower()]
    except KeyError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither yes nor no") from None


def number(kind: Callable[[str], Any], article: str) -> Callable[[str], Any]:
    """Returns a converter whose error names the expected type."""

    def convert(text: str) -> Any:
        try:
            return kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not {article}") from None

    return convert


CONVERTERS: Final[dict[Any, Callable[[str], Any]]] = {
    str: str,
    Path: Path,
    bool: truth,
    int: number(int, "a whole number"),
    float: number(float, "a number"),
}
