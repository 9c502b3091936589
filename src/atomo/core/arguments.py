"""Dataclasses of settings to command lines and back: each field is one option."""

import argparse
import re
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, fields
from dataclasses import field as data_field
from functools import cache
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar, get_args, get_type_hints

from atomo.core.names import nearest, truth
from atomo.core.published import OPTIONS, successor
from atomo.errors import ConfigError

__all__ = [
    "Parser",
    "flag",
    "number_converter",
    "option",
    "parse_arguments",
    "parser",
    "to_arguments",
    "translate_spellings",
]

S = TypeVar("S")
NEGATIVE: Final = re.compile(r"-\.?\d")


def option(default: Any, text: str) -> Any:
    """Returns a field of settings, with the text that `--help` and the reference show."""
    return data_field(default=default, metadata={"help": text})


class Parser(argparse.ArgumentParser):
    """A command-line parser that raises ConfigError instead of leaving the process."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


@cache  # building takes longer than parsing, and a parser keeps no state
def parser(settings: type[Any], command: str, description: str) -> Parser:
    """Returns the parser of a command with the fields of `settings` as its options."""
    built = Parser(
        prog=f"atomo {command}",
        description=description,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    hints = get_type_hints(settings)
    for field in fields(settings):
        kind = hints[field.name]
        truth_value = bool in (kind, *get_args(kind))
        built.add_argument(
            flag(field.name),
            type=CONVERTERS[next(iter(get_args(kind)), kind)],
            help=f"{field.metadata['help']} {shown_default(field)}".replace("%", "%%"),
            metavar="X",
            # The option without a value means yes.
            nargs="?" if truth_value else None,
            const=True if truth_value else None,
        )
    return built


def parse_arguments(
    settings: type[S],
    words: Sequence[str],
    command: str,
    description: str,
    build: Callable[..., S] | None = None,
) -> S:
    """Returns the settings that a command line describes, made by `build` of the given options.

    Raises:
        ConfigError: an option is unknown, or a value has the wrong type.
    """
    options = [flag(field.name) for field in fields(settings)]  # type: ignore[arg-type]
    translated = join_negatives(translate_spellings(words, options), options)
    # argparse would take `-host` for `-h`, and print the help.
    unknown = [word for word in translated if word[:2] != "--" and successor(word)]
    if not unknown:
        made = parser(settings, command, description)  # type: ignore[arg-type]
        parsed, unknown = made.parse_known_args(translated)
    if unknown:
        name = unknown[0].partition("=")[0]
        raise ConfigError(f"unknown option {name!r}; {hint(name, options)}")
    return (build or settings)(**vars(parsed))


def hint(name: str, options: Sequence[str]) -> str:
    """Returns the end of an error about an unknown option: the option to give in its place."""
    replacement = successor(name)
    own = {*options, "--config"}  # read before the settings
    foreign = set(re.findall(r"`(--[a-z-]+)", replacement)) - own
    return f"of `atomo train`, {replacement}" if foreign else replacement or nearest(name, options)


def translate_spellings(words: Sequence[str], options: Sequence[str]) -> list[str]:
    """Returns a command line with our options in place of their published spellings.

    >>> translate_spellings(["-n", "5", "--eval_freq=9"], ["--n", "--eval-freq"])
    ['--n', '5', '--eval-freq=9']
    """
    return [translation(word, options) for word in words]


def join_negatives(words: Sequence[str], options: Sequence[str]) -> list[str]:
    """Returns a command line with each negative quantity joined to its option: argparse would take
    `-1gbit` for an option of its own.

    >>> join_negatives(["--bandwidth", "-1gbit", "--json"], ["--bandwidth", "--json"])
    ['--bandwidth=-1gbit', '--json']
    """
    out: list[str] = []
    for word in words:
        if NEGATIVE.match(word) and out and out[-1] in options:
            out[-1] += f"={word}"
        else:
            out.append(word)
    return out


def translation(word: str, options: Sequence[str]) -> str:
    """Translates a word of a command line; a word that is no published option is unchanged."""
    name, equals, value = word.partition("=")
    dashed = name.replace("_", "-") if name.startswith("--") else name
    if dashed in options:
        return dashed + equals + value
    spelling = OPTIONS.get(dashed)
    if spelling is None or spelling.option not in options:
        return word
    return (
        f"{spelling.option}={spelling.value}"
        if spelling.value
        else spelling.option + equals + value
    )


def to_arguments(settings: Any) -> list[str]:
    """Returns the command line of `settings`: every field that is not its default."""
    return [
        f"{flag(field.name)}={getattr(settings, field.name)}"
        for field in fields(settings)
        if getattr(settings, field.name) != field.default
    ]


def flag(name: str) -> str:
    """Returns the option of a field: `--batch-size` of `batch_size`."""
    return "--" + name.replace("_", "-")


def shown_default(field: Field[Any]) -> str:
    """Returns the end of an option's help."""
    if field.default is MISSING:
        return "(required)"
    if field.default in (None, ""):
        return ""
    if isinstance(field.default, bool):
        return f"(default {'yes' if field.default else 'no'})"
    return f"(default {field.default})"


def yes_or_no(text: str) -> bool:
    try:
        return truth(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def number_converter(kind: Callable[[str], Any], article: str) -> Callable[[str], Any]:
    """Returns a converter of words for a parser; the error names the expected kind: "a whole
    number".
    """

    def convert(text: str) -> Any:
        try:
            return kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not {article}") from None

    return convert


CONVERTERS: dict[Any, Callable[[str], Any]] = {
    str: str,
    Path: Path,
    bool: yes_or_no,
    int: number_converter(int, "a whole number"),
    float: number_converter(float, "a number"),
}
