"""Methods that are no codec, since ranks sum what they make of gradients in rounds of their own."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from atomo.codecs import Codec, make_codec
from atomo.codecs.spec import read_call
from atomo.communicators.acpsgd import ACPSGD
from atomo.communicators.powersgd import PowerSGD
from atomo.errors import ConfigError

__all__ = ["METHODS", "Method", "method_of"]

Method = type[PowerSGD] | type[ACPSGD]
METHODS: Final[Mapping[str, Method]] = MappingProxyType(
    {method.__name__.lower(): method for method in (PowerSGD, ACPSGD)}
)


def method_of(code: object) -> tuple[Method, Codec[Any]] | None:
    """The method of a specification such as "powersgd(rank=4)", and the codec that says its rank;
    None where it is a codec's.

    Raises:
        ConfigError: it has another setting than a rank, or a rank below 1.
    """
    name = code.partition("(")[0].strip().lower() if isinstance(code, str) else ""
    if name not in METHODS:
        return None
    _, settings = read_call(str(code))
    if settings.keys() - {"rank"}:
        raise ConfigError(f"{name} takes a rank and nothing else, such as {name}(rank=4): {code!r}")
    spec = f"svd(rank={settings['rank']!r})" if settings else "svd"
    return METHODS[name], METHODS[name].fitted(make_codec(spec))
