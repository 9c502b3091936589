"""Options that are read only together with other options, and the reports on unread options.

A command has a table with an entry for each of its options: the condition under which the option is
read, and the fix where it is not. Only options that were given are looked up, so that no default
warns. An option that was clearly meant to have an effect is refused; for other options a caution
says that they have no effect.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, TypeVar, final

from atomo.core.arguments import flag
from atomo.core.visible import visible
from atomo.errors import ConfigError

__all__ = ["ALWAYS", "Effect", "build_reporting_idle", "caution", "report_idle", "without_effect"]

S = TypeVar("S")


@final
@dataclass(frozen=True)
class Effect(Generic[S]):
    """The condition under which a command reads an option."""

    reads: Callable[[S], bool]
    """True if these options have the command read it."""
    why: str = ""
    """Reason why the option is not read otherwise, and the fix; `{0.code}` stands for the value of
    another option.
    """
    refused: bool = False
    """True if an unread option is an error; False: a caution."""
    asks: Callable[[Any], bool] = bool
    """True if a value requests an effect; 0, no and an empty value mostly request none."""


ALWAYS: Final[Effect[Any]] = Effect(lambda options: True)


def without_effect(
    options: S, chosen: Mapping[str, Any], table: Mapping[str, Effect[S]]
) -> dict[str, Effect[S]]:
    """Returns the given options that are not read, with their table entries. The reasons of these
    entries contain the values of the options.

    Args:
        options: all options, defaults included.
        chosen: options of the command line, by field name.
        table: table of the command.
    """
    return {
        name: replace(table[name], why=table[name].why.format(options))
        for name, value in chosen.items()
        if table[name].asks(value) and not table[name].reads(options)
    }


def report_idle(
    idle: Mapping[str, Effect[Any]], chosen: Mapping[str, Any], say: Callable[[str], object]
) -> None:
    """Reports the options without effect; options with the same reason share a line.

    Raises:
        ConfigError: one of these options is refused.
    """
    lines: dict[str, list[str]] = {}
    for name, effect in idle.items():
        word = f"{flag(name)} {chosen[name]}"
        if effect.refused:
            raise ConfigError(f"{word} has no effect: {effect.why}")
        lines.setdefault(effect.why, []).append(word)
    for why, words in lines.items():
        say(f"{', '.join(words)} {'have' if len(words) > 1 else 'has'} no effect: {why}")


def build_reporting_idle(
    kind: Callable[..., S], table: Mapping[str, Effect[S]], command: str
) -> Callable[..., S]:
    """Returns a constructor of a command's options for `arguments.parse_arguments`; the constructor
    also reports options without effect.
    """

    def build(**values: Any) -> S:
        options = kind(**values)
        report_idle(without_effect(options, values, table), values, caution(command))
        return options

    return build


def caution(command: str) -> Callable[[str], object]:
    """Returns a function that writes a caution of a command to standard error."""
    return lambda text: sys.stderr.write(f"atomo {command}: caution: {visible(text)}\n")
