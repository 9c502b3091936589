"""Gradient codecs, by name. To add one: write its module, then list it in CODECS."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from atomo.codecs.base import Codec, Field, Law, Unit
from atomo.codecs.casts import BFloat16, Float16
from atomo.codecs.dense import Dense
from atomo.codecs.spec import parse
from atomo.codecs.svd import SVD

__all__ = [
    "CODECS",
    "SVD",
    "BFloat16",
    "Codec",
    "Dense",
    "Field",
    "Float16",
    "Law",
    "Unit",
    "make_codec",
]

CODECS: Mapping[str, type[Codec[Any]]] = MappingProxyType(
    {codec.id: codec for codec in (Dense, Float16, BFloat16, SVD)}
)


def make_codec(spec: str) -> Codec[Any]:
    """Builds the codec that `spec` describes.

    >>> make_codec("fp16")
    Float16()

    Raises:
        ConfigError: `spec` cannot be read, names no codec, or gives settings it does not take.
    """
    return parse(spec, CODECS)
