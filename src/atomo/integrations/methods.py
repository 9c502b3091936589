"""Methods that are no codec, since ranks sum what they make of gradients in rounds of their own."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Final, final

from atomo.api.validate import as_codec
from atomo.codecs import SVD, Codec, make_codec
from atomo.codecs.spec import read_call
from atomo.communicators.acpsgd import ACPSGD
from atomo.communicators.chunked import Chunked
from atomo.communicators.powersgd import PowerSGD
from atomo.errors import ConfigError

__all__ = ["LOW_RANK", "METHODS", "Meant", "Method", "read_code"]

Method = type[PowerSGD] | type[ACPSGD]
LOW_RANK: Final[Mapping[str, Method]] = MappingProxyType(
    {method.__name__.lower(): method for method in (PowerSGD, ACPSGD)}
)


@final
@dataclass(frozen=True)
class Meant:
    """What a specification stands for."""

    codec: Codec[Any]
    method: Method | None = None
    """What sums in rounds of its own; the codec says the rank."""
    chunked: bool = False
    """Whether ranks agree on the chunks that they send."""

    def __str__(self) -> str:
        name = self.method.__name__ if self.method else "Chunked" * self.chunked
        return f"{name} by {self.codec}" if name else str(self.codec)


def read_code(code: object) -> Meant:
    """What `code` stands for: a codec, its specification, or that of a method, such as
    "powersgd(rank=4)" and "chunked(ratio=0.01, chunk=256)".

    Raises:
        ConfigError: it is none, or has settings that it does not take.
    """
    name = code.partition("(")[0].strip().lower() if isinstance(code, str) else ""
    return METHODS[name](str(code)) if name in METHODS else Meant(as_codec(code))


def low_rank(name: str, code: str) -> Meant:
    """A method that sums factors.

    Raises:
        ConfigError: it has another setting than a rank, or a rank below 1.
    """
    _, settings = read_call(code)
    if settings.keys() - {"rank"}:
        raise ConfigError(f"{name} takes a rank and nothing else, such as {name}(rank=4): {code!r}")
    rank = settings.get("rank", SVD().rank)
    if type(rank) is not int or rank < 1:
        raise ConfigError(f"{name}: rank must be a whole number of 1 or more, got {rank!r}")
    return Meant(LOW_RANK[name].fitted(SVD(rank=rank)), LOW_RANK[name])


def chunked(code: str) -> Meant:
    """The settings are those of `chunktopk`."""
    _, bracket, settings = code.partition("(")
    try:
        codec = make_codec(f"chunktopk{bracket}{settings}")
    except ConfigError as error:
        raise ConfigError(str(error).replace("chunktopk", "chunked")) from error
    return Meant(Chunked.fitted(codec), chunked=True)


METHODS: Final[Mapping[str, Callable[[str], Meant]]] = MappingProxyType(
    {**{name: partial(low_rank, name) for name in LOW_RANK}, "chunked": chunked}
)
