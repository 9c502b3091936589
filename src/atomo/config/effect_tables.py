"""Options that are read only beside some others, and what a command line is told of the rest.

A command has a table with an entry for each of its options: the condition under which the option is
read, and the fix where it is not. Only options that were given are looked up, so that no default
warns. An option that was clearly meant to do something is refused; where nothing is lost, a caution
says that the option has no effect.
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
    """True if it is an error where it is not read; else it is worth a caution."""
    asks: Callable[[Any], bool] = bool
    """True if a value asks for something: 0, no and an empty one mostly ask for nothing."""


ALWAYS: Final[Effect[Any]] = Effect(lambda options: True)


def without_effect(
    options: S, given: Mapping[str, Any], table: Mapping[str, Effect[S]]
) -> dict[str, Effect[S]]:
    """Returns the options that were given and are not read, with their entries of the table, whose
    reasons have the values of these options.

    Args:
        options: all, with defaults.
        given: those of the command line, by the name of their field.
        table: of the command.
    """
    return {
        name: replace(table[name], why=table[name].why.format(options))
        for name, value in given.items()
        if table[name].asks(value) and not table[name].reads(options)
    }


def report_idle(
    idle: Mapping[str, Effect[Any]], given: Mapping[str, Any], say: Callable[[str], object]
) -> None:
    """Says which options have no effect, those with the same reason in one line.

    Raises:
        ConfigError: one of them is refused.
    """
    lines: dict[str, list[str]] = {}
    for name, effect in idle.items():
        word = f"{flag(name)} {given[name]}"
        if effect.refused:
            raise ConfigError(f"{word} has no effect: {effect.why}")
        lines.setdefault(effect.why, []).append(word)
    for why, words in lines.items():
        say(f"{', '.join(words)} {'have' if len(words) > 1 else 'has'} no effect: {why}")


def build_reporting_idle(
    kind: Callable[..., S], table: Mapping[str, Effect[S]], command: str
) -> Callable[..., S]:
    """Returns what `arguments.parse` builds the options of a command with, which says on the way
    what of them has no effect.
    """

    def build(**given: Any) -> S:
        options = kind(**given)
        report_idle(without_effect(options, given, table), given, caution(command))
        return options

    return build


def caution(command: str) -> Callable[[str], object]:
    """Returns a function that writes a line for whoever typed a command."""
    return lambda text: sys.stderr.write(f"atomo {command}: caution: {visible(text)}\n")
