"""Settings of a codec, checked by its constructor: whether a specification or a program gives them.

Each must be of the type that its field declares. A whole number serves where a float is declared,
and a number of numpy does where its like is; a truth value is no number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar, get_type_hints, overload

from atomo.codecs.laws import Granularity
from atomo.errors import ConfigError

__all__ = ["Inner", "check_types"]

T = TypeVar("T")
NOTHING: Final = ("none", "None")  # in a specification; the latter is how Python shows it
PLAIN: Final = MappingProxyType({bool: bool, int: Integral, float: Real, str: str})


def check_types(codec: Any) -> None:
    """Gives every plain setting of a codec under construction the type of its field.

    Raises:
        ConfigError: a value is of another type.
    """
    for name, kind in plain_settings(codec.__class__).items():
        value = getattr(codec, name)
        if type(value) is not kind:
            object.__setattr__(codec, name, fitted(codec.id, name, value, kind))


@cache
def plain_settings(codec: Any) -> Mapping[str, type]:
    """Returns the types of the settings that are not codecs, by name."""
    hints = get_type_hints(codec)
    named = {field.name: hints[field.name] for field in fields(codec)}
    return {name: kind for name, kind in named.items() if kind in PLAIN}


def fitted(codec: str, name: str, value: object, kind: type) -> object:
    """Converts a value to the type that its setting declares."""
    if not isinstance(value, PLAIN[kind]) or (isinstance(value, bool) and kind is not bool):
        raise ConfigError(f"{codec}: {name} must be of type {kind.__name__}, got {value!r}")
    return kind(value)


class Inner(Generic[T]):
    """A setting that is a codec of plain entries: takes an object, or a specification.

    An optional one, of which the default is None, takes "none" as well.

    >>> from atomo.codecs import QSGD, TopK
    >>> TopK(values=QSGD(bits=2)) == TopK(values="qsgd(bits=2)")
    True
    """

    def __init__(self, default: T) -> None:
        self._default = default
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, codec: None, owner: type) -> T: ...
    @overload
    def __get__(self, codec: object, owner: type) -> T: ...
    def __get__(self, codec: object | None, owner: type) -> T:
        if codec is None:  # a dataclass asks for the default of its field
            return self._default
        value: T = vars(codec)[self._name]
        return value

    def __set__(self, codec: object, value: T | str) -> None:
        vars(codec)[self._name] = self._read(codec, value)

    def _read(self, codec: Any, value: T | str) -> object:
        from atomo.codecs import Codec, make_codec  # which import this module

        optional = self._default is None
        named = isinstance(value, str) and value not in NOTHING
        inner = make_codec(value) if named else value  # type: ignore[arg-type]
        if optional and inner in (None, *NOTHING):
            return None
        if not isinstance(inner, Codec) or inner.default_granularity is not Granularity.ENTRIES:
            expected = "a codec of plain entries" + (", or none" if optional else "")
            raise ConfigError(f"{codec.id}: {self._name} must be {expected}; got {value}")
        return inner
