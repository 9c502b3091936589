"""Codecs of single parameters, by name, where one codec for all parameters is not the best.

`bf16: conv1.weight fc*; svd(rank=3): conv2.weight` names codecs and the parameters that each
encodes; `*` matches any letters. The first rule that matches a parameter applies; all other
parameters have the codec of the run. Tensors that `codecs.dense_fallback` sends dense still travel
dense.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from glob import escape
from typing import Any, Final, final

import torch

from atomo.codecs import Codec, make_codec
from atomo.codecs.dense_fallback import DENSE
from atomo.errors import ConfigError

__all__ = ["NONE", "ByName", "Rule", "dense_below", "parse_by_name"]


@final
@dataclass(frozen=True)
class Rule:
    """A codec, and the parameters that it encodes."""

    codec: Codec[Any]
    names: tuple[str, ...]

    def covers(self, name: str) -> bool:
        """Returns True if this rule names the codec of a parameter."""
        return any(fnmatchcase(name, pattern) for pattern in self.names)

    def __str__(self) -> str:
        return f"{self.codec}: {' '.join(self.names)}"


@final
@dataclass(frozen=True)
class ByName:
    """Rules that give parameters codecs of their own; the first rule that matches applies."""

    rules: tuple[Rule, ...] = ()

    def codec(self, name: str, otherwise: Codec[Any]) -> Codec[Any]:
        """Returns the codec of a parameter, or `otherwise` if no rule names the parameter."""
        return next((rule.codec for rule in self.rules if rule.covers(name)), otherwise)

    @property
    def codecs(self) -> tuple[Codec[Any], ...]:
        """The codecs of all rules."""
        return tuple(rule.codec for rule in self.rules)

    def mapped(self, change: Callable[[Codec[Any]], Codec[Any]]) -> ByName:
        """Returns the same rules with changed codecs."""
        return ByName(tuple(replace(rule, codec=change(rule.codec)) for rule in self.rules))

    def check_names(self, parameters: Iterable[str]) -> None:
        """Raises ConfigError if a name matches no parameter: its rule would have no effect."""
        all_names = list(parameters)
        for name in (name for rule in self.rules for name in rule.names):
            if not any(fnmatchcase(parameter, name) for parameter in all_names):
                raise ConfigError(
                    f"--code-for: no parameter is called {name!r}; they are "
                    f"{', '.join(all_names[:4])}"
                    f"{', ...' if len(all_names) > 4 else ''}"
                )

    def __str__(self) -> str:
        """Returns text from which `parse_by_name` makes equal rules."""
        return "; ".join(map(str, self.rules))


NONE: Final[ByName] = ByName()


def dense_below(
    tensors: Iterable[tuple[str, torch.Size]], entries: int, rules: ByName = NONE
) -> ByName:
    """Adds a rule that sends tensors of fewer entries dense; it goes before all `rules`.

    >>> str(dense_below([("a.weight", torch.Size((8, 8))), ("b", torch.Size((3, 3)))], 10))
    'sgd: b'
    """
    small = tuple(escape(name) for name, shape in tensors if shape.numel() < entries)
    return ByName((Rule(DENSE, small), *rules.rules)) if small else rules


def parse_by_name(text: str) -> ByName:
    """Parses the value of `--code-for`.

    >>> str(parse_by_name("BF16: conv1.weight  fc*; sgd:head.*"))
    'bf16: conv1.weight fc*; sgd: head.*'

    Raises:
        ConfigError: the text cannot be read, or a codec is unknown.
    """
    return ByName(tuple(parse_rule(entry) for entry in text.split(";") if entry.strip()))


def parse_rule(entry: str) -> Rule:
    """Parses one rule, `CODEC: NAME NAME`."""
    spec, colon, names = entry.partition(":")
    if not colon or not names.split():
        raise ConfigError(f"--code-for: cannot read {entry.strip()!r}; write 'CODEC: NAME NAME*'")
    return Rule(make_codec(spec), tuple(names.split()))
