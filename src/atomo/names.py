"""Names as people type them: in any case, with or without a dash or an underscore."""

import difflib
from collections.abc import Iterable

from atomo.errors import ConfigError

__all__ = ["nearest", "resolve"]


def resolve(kind: str, name: str, known: Iterable[str]) -> str:
    """The spelling in `known` of what `name` means; case, `-` and `_` make no difference.

    >>> resolve("model", "resnet-18", ["LeNet", "ResNet18"])
    'ResNet18'

    Raises:
        ConfigError: nothing in `known` has this name; the message offers the nearest and lists all.
    """
    spellings = list(known)
    for spelling in spellings:
        if fold(spelling) == fold(name):
            return spelling
    raise ConfigError(f"unknown {kind} {name!r}; {nearest(name, spellings)}")


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of an error message about an unknown name.

    >>> nearest("ResNet19", ["LeNet", "ResNet18"])
    "did you mean 'ResNet18'? known: LeNet, ResNet18"
    """
    spellings = list(known)
    folded = {fold(spelling): spelling for spelling in spellings}
    close = difflib.get_close_matches(fold(name), folded, n=1)
    hint = f"did you mean {folded[close[0]]!r}? " if close else ""
    return f"{hint}known: {', '.join(spellings) or 'none'}"


def fold(name: str) -> str:
    """What two spellings of one name have in common."""
    return name.lower().replace("-", "").replace("_", "")
