"""Names as users type them: in any case, with or without dashes, or from other systems."""

import difflib
import re
from collections.abc import Iterable

from atomo.core.published import NAMES
from atomo.errors import ConfigError

__all__ = ["described", "find_spelling", "fold", "nearest", "resolve", "truth"]

SHOWN = 60  # characters of a value in an error
YES, NO = ("yes", "true", "1", "on"), ("no", "false", "0", "off", "")


def described(value: object) -> str:
    """Returns a value and its type, for an error.

    >>> described(1.5)
    '1.5 of type float'
    """
    return f"{repr(value)[:SHOWN]} of type {type(value).__name__}"


def truth(word: str) -> bool:
    """Returns a truth value; nothing at all is no.

    Raises:
        ConfigError: the word is neither.
    """
    if word.lower() not in YES + NO:
        raise ConfigError(f"{word!r} is neither yes nor no")
    return word.lower() in YES


def resolve(kind: str, name: str, known: Iterable[str]) -> str:
    """Returns the spelling in `known` of a name, which may be that of another published system.

    Case, `-`, `_` and `/` make no difference.

    >>> resolve("network", "resnet-18", ["LeNet", "ResNet18"])
    'ResNet18'
    >>> resolve("codec", "lss_sgd", ["sgd", "lss"])
    'lss'

    Raises:
        ConfigError: nothing in `known` has this name; the message offers the nearest and lists all.
    """
    spellings = list(known)
    published = NAMES.get(kind, {}).get(fold(name), name)
    if match := find_spelling(name, spellings) or find_spelling(published, spellings):
        return match
    hint = nearest(name, spellings) if published == name else f"here it is {published!r}"
    raise ConfigError(f"unknown {kind} {name!r}; {hint}")


def find_spelling(name: str, known: Iterable[str]) -> str:
    """Returns the spelling in `known` that differs in case, `-`, `_` and `/` at most; empty: none
    does.
    """
    return next((spelling for spelling in known if fold(spelling) == fold(name)), "")


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns the end of an error message about an unknown name.

    >>> nearest("ResNet19", ["LeNet", "ResNet18"])
    "did you mean 'ResNet18'? known: LeNet, ResNet18"
    """
    spellings = list(known)
    folded = {fold(spelling): spelling for spelling in spellings}
    close = difflib.get_close_matches(fold(name), folded, n=1)
    hint = f"did you mean {folded[close[0]]!r}? " if close else ""
    return f"{hint}known: {', '.join(spellings) or 'none'}"


def fold(name: str) -> str:
    """Returns the form that all spellings of a name share."""
    return re.sub("[-_/]", "", name.lower())
