"""The one notation for codecs: `svd`, `svd(rank=3)`, `svd(rank=3, selection=top)`.

It is Python's call syntax with keyword arguments only, so Python's own parser reads it; nothing is
ever evaluated.
"""

import ast
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_type_hints

from atomo.codecs.base import Codec
from atomo.errors import ConfigError
from atomo.names import nearest

__all__ = ["parse"]

LONGEST = 1000  # characters; a specification may come from another machine


def parse(text: str, codecs: Mapping[str, type[Codec[Any]]]) -> Codec[Any]:
    """Builds the codec that `text` describes.

    Raises:
        ConfigError: the text is no specification, no codec has this name, or it does not take
            these settings.
    """
    if len(text) > LONGEST:
        raise ConfigError(f"codec specification of {len(text)} characters; at most {LONGEST}")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise malformed(text) from None
    return build(tree, codecs, text)


def build(tree: ast.expr, codecs: Mapping[str, type[Codec[Any]]], text: str) -> Codec[Any]:
    """Builds the codec of one parsed specification."""
    match tree:
        case ast.Name(id=name):
            settings: list[ast.keyword] = []
        case ast.Call(func=ast.Name(id=name), args=[], keywords=settings):
            pass
        case _:
            raise malformed(text)
    if name not in codecs:
        raise ConfigError(f"unknown codec {name!r}; {nearest(name, codecs)}")
    return construct(codecs[name], {str(s.arg): literal(s.value, text) for s in settings})


def construct(codec: type[Codec[Any]], settings: dict[str, object]) -> Codec[Any]:
    """Builds a codec from its settings, each checked against the type that its field declares."""
    hints = get_type_hints(codec)
    known = {field.name: hints[field.name] for field in fields(codec)}  # type: ignore[arg-type]
    for name, value in settings.items():
        if name not in known:
            raise ConfigError(f"{codec.id}: unknown setting {name!r}; {nearest(name, known)}")
        if known[name] is float and type(value) is int:
            settings[name] = float(value)
        elif type(value) is not known[name]:
            raise ConfigError(
                f"{codec.id}: {name} must be of type {known[name].__name__}, got {value!r}"
            )
    return codec(**settings)


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
    return ConfigError(
        f"cannot read codec specification {text[:80]!r}; write it like 'svd(rank=3)'"
    )
