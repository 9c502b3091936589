"""The one notation for codecs and memories: `svd`, `svd(rank=3)`, `svd(rank=3, selection=top)`.

It is Python's call syntax with keyword arguments only, so Python's own parser reads it; nothing is
ever evaluated.
"""

import ast
import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_type_hints

from atomo.codecs.base import Codec, Unit
from atomo.errors import ConfigError
from atomo.names import nearest, resolve, spelled

__all__ = ["parse", "read_call"]

STRANGE = re.compile(r"\\|(?<![\w.])\d[\d.]*[A-DF-Za-df-z_]")  # escapes, and words in numbers
LONGEST = 1000  # characters; a specification may come from another machine


def parse(text: str, codecs: Mapping[str, type[Codec[Any]]]) -> Codec[Any]:
    """Builds the codec that `text` describes.

    Raises:
        ConfigError: the text is no specification, no codec has this name, or it does not take
            these settings.
    """
    return build(read(text), codecs, text)


def read_call(text: str) -> tuple[str, dict[str, object]]:
    """The name and the settings, all of them plain values, of a specification.

    >>> read_call("residual(beta=0.9)")
    ('residual', {'beta': 0.9})

    Raises:
        ConfigError: the text is no specification.
    """
    name, given = parts(read(text), text)
    return name, {key: literal(value, text) for key, value in given.items()}


def read(text: str) -> ast.expr:
    """The parsed text."""
    if len(text) > LONGEST:
        raise ConfigError(f"specification of {len(text)} characters; at most {LONGEST}")
    if STRANGE.search(text):  # Python's parser would warn of it, on a stranger's behalf
        raise malformed(text)
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise malformed(text) from None


def parts(tree: ast.expr, text: str) -> tuple[str, dict[str, ast.expr]]:
    """The name and the settings of one parsed specification."""
    match tree:
        case ast.Name(id=name):
            return name, {}
        case ast.Call(func=ast.Name(id=name), args=[], keywords=settings):
            return name, {str(setting.arg): setting.value for setting in settings}
    raise malformed(text)


def build(tree: ast.expr, codecs: Mapping[str, type[Codec[Any]]], text: str) -> Codec[Any]:
    """Builds the codec of one parsed specification."""
    name, given = parts(tree, text)
    codec = codecs[resolve("codec", name, codecs)]
    return construct(codec, {key: value_of(given[key], codecs, text) for key in given})


def value_of(tree: ast.expr, codecs: Mapping[str, type[Codec[Any]]], text: str) -> object:
    """The value of one setting, which may be a codec."""
    match tree:
        case ast.Call():
            return build(tree, codecs, text)
        case ast.Name(id=name) if known := spelled(name, codecs):
            return Word(name, codecs[known]())
    return literal(tree, text)


class Word(str):
    """A bare word that is also the name of a codec: which of the two, the setting's type says."""

    codec: Codec[Any]

    def __new__(cls, name: str, codec: Codec[Any]) -> "Word":
        word = super().__new__(cls, name)
        word.codec = codec
        return word


def construct(codec: type[Codec[Any]], settings: dict[str, object]) -> Codec[Any]:
    """Builds a codec from its settings, each checked against the type that its field declares."""
    hints = get_type_hints(codec)
    known = {field.name: hints[field.name] for field in fields(codec)}  # type: ignore[arg-type]
    for name, value in settings.items():
        if name not in known:
            raise ConfigError(f"{codec.id}: unknown setting {name!r}; {nearest(name, known)}")
        settings[name] = fitted(codec.id, name, value, known[name])
    return codec(**settings)


def fitted(codec: str, name: str, value: object, kind: Any) -> object:
    """`value` as the type that its setting declares; an inner codec where it takes one."""
    if kind is float and type(value) is int:
        return float(value)
    if kind not in (bool, int, float, str):  # Codec[Any] | None
        inner = value.codec if isinstance(value, Word) else value
        if not isinstance(inner, Codec) or inner.unit is not Unit.ENTRIES:
            raise ConfigError(f"{codec}: {name} must be a codec of plain entries, got {value}")
        return inner
    plain = str(value) if isinstance(value, Word) else value
    if type(plain) is not kind:
        raise ConfigError(f"{codec}: {name} must be of type {kind.__name__}, got {value!r}")
    return plain


def literal(tree: ast.expr, text: str) -> object:
    """The value of one setting: a number, a truth value or a bare word."""
    match tree:
        case ast.Constant(value=bool() | int() | float() | str() as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.Name(id=word):
            return word
    raise malformed(text)


def malformed(text: str) -> ConfigError:
    """The error for text that is no specification at all."""
    return ConfigError(f"cannot read the specification {text[:80]!r}; write it like 'svd(rank=3)'")
