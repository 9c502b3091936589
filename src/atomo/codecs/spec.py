"""The one notation for codecs and memories: `svd`, `svd(rank=3)`, `svd(rank=3, selection=top)`.

It is Python's call syntax with keyword arguments only, so Python's own parser reads it, once every
word of it is seen to be one that we mean; nothing is ever evaluated. It may come from another
machine: its length, its depth and its numbers are bounded.
"""

import ast
import math
import re
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields
from itertools import accumulate
from types import MappingProxyType
from typing import Any, Final

from atomo.codecs.base import Codec
from atomo.core.names import described, fold, nearest, resolve
from atomo.core.published import NAMES
from atomo.errors import ConfigError

__all__ = ["parse_codec", "read_call"]

LONGEST: Final = 1000  # characters
DEEPEST: Final = 8  # nested codecs; decoding is nested too
LARGEST: Final = 2**63 - 1  # of a whole number
SHOWN: Final = 80  # characters of a wrong specification in an error
IN_ROUNDS: Final[Mapping[str, str]] = MappingProxyType(
    {"powersgd": "PowerSGD", "acpsgd": "ACPSGD", "chunked": "Chunked"}
)
"""Methods of several rounds between ranks, which are no codecs, and their `--comm-type`."""
NAME: Final = re.compile(r"\s*([A-Za-z_]\w*)\s*(?:\(|$)", re.ASCII)
# A name as papers print it, which is no identifier: "Top-k", "EF-signSGD(...)", "1-bit".
PRINTED: Final = re.compile(r"\s*((?:\d\w*|\w+-)[\w-]*)\s*(?=\(|$)", re.ASCII)
# CPython 3.11 counts the depth of syntax trees for all threads together: where garbage is collected
# while it makes one and another thread makes one then, `ast.parse` raises SystemError (gh-106905).
ONE_AT_A_TIME: Final = threading.Lock()
# All that a specification is made of. No word touches a number or a string: Python's parser would
# warn of some that do, on a stranger's behalf, and read others as something else.
WORDS: Final = re.compile(
    r"""(?: [A-Za-z_]\w* (?!["'\w])
          | (?: \d+ (?:\.\d*)? | \.\d+ ) (?:[eE][+-]?\d+)? (?![\w.])
          | "[^"'\\\n]*" (?!["'\w]) | '[^"'\\\n]*' (?!["'\w])
          | [(),=\s-] )*""",
    re.ASCII | re.VERBOSE,
)


def parse_codec(text: str, codecs: Mapping[str, type[Codec[Any]]]) -> Codec[Any]:
    """Builds the codec that `text` describes.

    Raises:
        ConfigError: the text is no specification, no codec has this name, or it does not take
            these settings.
    """
    if unbalanced(text) and (called := NAME.match(text)):
        codec_named(called[1], codecs)  # a misspelt name is reported before the bracket
    return build(read(text), codecs, text)


def unbalanced(text: object) -> bool:
    """Returns True if the brackets of a text of acceptable length do not match."""
    return isinstance(text, str) and len(text) <= LONGEST and text.count("(") != text.count(")")


def codec_named(name: str, codecs: Mapping[str, type[Codec[Any]]]) -> type[Codec[Any]]:
    """Returns the codec class with this name.

    Raises:
        ConfigError: no codec has this name. For a method of several rounds the message names the
            functions that accept it.
    """
    spelling = resolve("codec", name, [*codecs, *IN_ROUNDS])
    if spelling in IN_ROUNDS:
        raise ConfigError(
            f"{spelling} is no codec: ranks sum its parts in several rounds, so that it cannot "
            "encode a gradient on its own. atomo.ddp_hook and atomo.wrap_optimizer take it, and "
            f"runs with --comm-type {IN_ROUNDS[spelling]}"
        )
    return codecs[spelling]


def read_call(text: str) -> tuple[str, dict[str, object]]:
    """Parses a specification with plain values only into a name and settings.

    >>> read_call("residual(beta=0.9)")
    ('residual', {'beta': 0.9})

    Raises:
        ConfigError: the text is no specification.
    """
    name, settings = parts(read(text), text)
    return name, {key: literal(value, text) for key, value in settings.items()}


def read(text: object) -> ast.expr:
    if not isinstance(text, str):
        raise ConfigError(f"a specification is text such as 'svd(rank=3)', got {described(text)}")
    if len(text) > LONGEST:
        raise ConfigError(f"specification of {len(text)} characters; at most {LONGEST}")
    identified = with_identifier(text)
    if not WORDS.fullmatch(identified) or deepest(identified) > DEEPEST:
        raise malformed(text)
    try:
        with ONE_AT_A_TIME:
            return ast.parse(identified.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise malformed(text) from None


def with_identifier(text: str) -> str:
    """Returns a specification whose name is an identifier.

    >>> with_identifier("Top-k(ratio=0.1)"), with_identifier("1-bit"), with_identifier("svd")
    ('topk(ratio=0.1)', 'onebit', 'svd')
    """
    printed = PRINTED.match(text)
    if printed is None:
        return text
    name = fold(printed[1])
    return NAMES["codec"].get(name, name) + text[printed.end(1) :]


def deepest(text: str) -> int:
    """Returns the depth of nested brackets."""
    steps = ((letter == "(") - (letter == ")") for letter in text)
    return max(accumulate(steps), default=0)


def parts(tree: ast.expr, text: str) -> tuple[str, dict[str, ast.expr]]:
    """Splits a parsed specification into its name and its settings."""
    match tree:
        case ast.Name(id=name):
            return name, {}
        case ast.Call(func=ast.Name(id=name), args=[], keywords=settings):
            names = [str(setting.arg) for setting in settings]
            if twice := [repeated for repeated, count in Counter(names).items() if count > 1]:
                raise ConfigError(f"{name}: setting {twice[0]!r} is given twice in {shown(text)}")
            return name, {str(setting.arg): setting.value for setting in settings}
    raise malformed(text)


def build(tree: ast.expr, codecs: Mapping[str, type[Codec[Any]]], text: str) -> Codec[Any]:
    name, trees = parts(tree, text)
    settings = {key: value_of(trees[key], codecs, text) for key in trees}
    return construct(codec_named(name, codecs), settings)


def value_of(tree: ast.expr, codecs: Mapping[str, type[Codec[Any]]], text: str) -> object:
    """Returns the value of a setting, which may be a codec."""
    match tree:
        case ast.Call():
            return build(tree, codecs, text)
        case ast.Constant(value=None):
            return "None"
    return literal(tree, text)


def construct(codec: type[Codec[Any]], settings: dict[str, object]) -> Codec[Any]:
    """Builds a codec from its settings; the constructor checks their types."""
    names = [field.name for field in fields(codec)]  # type: ignore[arg-type]
    for name in settings:
        if name not in names:
            raise ConfigError(f"{codec.id}: unknown setting {name!r}; {nearest(name, names)}")
    return codec(**settings)


def literal(tree: ast.expr, text: str) -> object:
    """Returns the plain value of a setting: a number, a truth value or a bare word."""
    match tree:
        case ast.Constant(value=bool() | str() as value):
            return value
        case ast.Constant(value=int() | float() as number):
            return bounded(number, text)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)) if (
            type(number) is not bool
        ):
            return 0 - bounded(number, text)  # so that there is no zero below zero
        case ast.Name(id=word):
            return word
    raise malformed(text)


def bounded(number: int | float, text: str) -> int | float:
    """Returns a number after a check that every setting can hold it."""
    if (type(number) is int and number > LARGEST) or number == math.inf:
        digits = shown(str(number) if type(number) is int else "inf")
        raise ConfigError(f"the number {digits} in {shown(text)} is above {LARGEST} or infinite")
    return number


def shown(text: str) -> str:
    return repr(text if len(text) <= SHOWN else f"{text[:SHOWN]}...")


def malformed(text: str) -> ConfigError:
    """Builds the error for text that is not a specification."""
    brackets = ": its brackets do not match" if unbalanced(text) else ""
    return ConfigError(
        f"cannot read the specification {shown(text)}{brackets}; write it like 'svd(rank=3)'"
    )
