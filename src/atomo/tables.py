"""Tables of what can be asked for by name, a line each: a module and a name in it."""

from importlib import import_module
from typing import Any

__all__ = ["listed"]


def listed(package: str, *places: str) -> list[Any]:
    """What stands at each of `places`, "module:name" below `package`.

    A line of text in place of an import and a mention, so that what is added needs only one.

    >>> listed("atomo.data", "digits:DIGITS")[0].name
    'Digits'
    """
    found = []
    for place in places:
        module, _, name = place.partition(":")
        found.append(getattr(import_module(f"{package}.{module}"), name))
    return found
