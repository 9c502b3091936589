"""A grid of settings: options of `atomo train` with several values each."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import product
from typing import Final, final, get_args, get_type_hints

from atomo.config.settings import Settings
from atomo.core.arguments import flag, translate_spellings
from atomo.errors import ConfigError

__all__ = ["Axis", "axes_of", "grid_points"]

POWERS: Final = re.compile(r"(\d{1,9})\^(-?\d{1,9})\.\.(\d{1,9})\^(-?\d{1,9})")
MOST: Final = 1000  # values of a range
CODECS: Final = "--code"  # separated by semicolons: a codec may contain commas


@final
@dataclass(frozen=True)
class Axis:
    """An option, and the values that are tried."""

    option: str
    values: tuple[str, ...]


def axes_of(words: Sequence[str]) -> tuple[list[Axis], list[str]]:
    """Returns the options that have several values, and the remaining words.

    Commas separate numbers, semicolons separate codecs, and `2^-7..2^-1` is a range of powers.

    >>> axes_of(["--lr", "2^-2..2^0", "--n", "3"])
    ([Axis(option='--lr', values=('0.25', '0.5', '1'))], ['--n=3'])

    Raises:
        ConfigError: a range cannot be read, or an option with several values is given twice.
    """
    axes: list[Axis] = []
    fixed: list[str] = []
    for option, value in option_pairs(words):
        values = () if value is None else axis_values(option, value)
        if len(values) > 1:
            axes.append(Axis(option, values))
        else:  # joined, because a value may be empty or begin with a dash
            fixed.append("=".join([option, *values]))
    doubled = {axis.option for axis in axes if [a.option for a in axes].count(axis.option) > 1}
    if doubled:
        raise ConfigError(f"{doubled.pop()} is given twice; give all of its values in one")
    return axes, fixed


def grid_points(axes: Sequence[Axis]) -> Iterator[dict[str, str]]:
    """Yields every combination of values, by option; the last axis varies fastest."""
    for values in product(*(axis.values for axis in axes)):
        yield dict(zip((axis.option for axis in axes), values, strict=True))


def option_pairs(words: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Yields each option with its value, which may be empty, and words without one, with None."""
    options = [flag(field.name) for field in fields(Settings)]
    remaining = list(translate_spellings(words, options))
    while remaining:
        word = remaining.pop(0)
        name, equals, value = word.partition("=")
        if name not in options:
            yield word, None
        elif equals:
            yield name, value
        else:  # a flag without a value means yes
            yield name, None if not remaining or remaining[0].startswith("--") else remaining.pop(0)


def axis_values(option: str, value: str) -> tuple[str, ...]:
    """Returns the values that one word stands for."""
    if option == CODECS:
        return tuple(code.strip() for code in value.split(";") if code.strip()) or (value,)
    if option not in numeric_options():
        return (value,)
    return tuple(
        number_text
        for part in value.split(",")
        for number_text in expand_powers(option, part.strip())
    )


def expand_powers(option: str, part: str) -> tuple[str, ...]:
    """Returns the powers of a range; any other text unchanged."""
    match = POWERS.fullmatch(part)
    if match is None:
        if ".." in part or "^" in part:
            raise ConfigError(f"{option} {part!r}: cannot read this range; write 2^-7..2^-1")
        return (part,)
    base, first, last_base, last = map(int, match.groups())
    if base != last_base or not 0 < abs(last - first) + 1 <= MOST or abs(first) + abs(last) > MOST:
        raise ConfigError(f"{option} {part!r}: a range has powers of one number, {MOST} at most")
    step = 1 if last >= first else -1
    try:
        return tuple(number(float(base) ** power) for power in range(first, last + step, step))
    except ArithmeticError as error:
        raise ConfigError(f"{option} {part!r}: a power of it is no finite number") from error


def number(value: float) -> str:
    """Returns the shortest text of a value."""
    return str(int(value)) if value.is_integer() else repr(value)


def numeric_options() -> frozenset[str]:
    """Returns the options that take numbers."""
    hints = get_type_hints(Settings)
    return frozenset(
        flag(name) for name, kind in hints.items() if {int, float} & {kind, *get_args(kind)}
    )
