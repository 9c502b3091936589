"""Gradient codecs, by name. To add one: write its module in its family, then list it in CODECS."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from atomo.codecs.base import Codec, Field, Law, Unit
from atomo.codecs.spec import parse
from atomo.tables import listed

__all__ = ["CODECS", "Codec", "Field", "Law", "Unit", "make_codec"]

CODECS: Mapping[str, type[Codec[Any]]] = MappingProxyType(
    {
        codec.id: codec
        for codec in listed(
            __name__,
            "dense.dense:Dense",
            "dense.fp16:Float16",
            "dense.bf16:BFloat16",
            "spectral.svd:SVD",
            "spectral.entrywise:Entrywise",
            "spectral.fourier:Fourier",
            "spectral.atomo_auto:Atomo",
            "sketches.sketchml:SketchML",
            "sketches.lss:LSS",
            "sketches.countsketch:CountSketch",
            "levels.qsgd:QSGD",
            "levels.terngrad:TernGrad",
            "levels.natural:Natural",
            "signs.signsgd:SignSGD",
            "signs.signsgd:Signum",
            "signs.efsignsgd:EFSignSGD",
            "signs.onebit:OneBit",
            "sparse.topk:TopK",
            "sparse.threshold:Threshold",
            "sparse.randk:RandK",
            "sparse.chunktopk:ChunkTopK",
            "sparse.dgc:DGC",
            "sparse.dragonn:Dragonn",
        )
    }
)


def make_codec(spec: str) -> Codec[Any]:
    """Builds the codec that `spec` describes.

    >>> make_codec("fp16")
    Float16()

    Raises:
        ConfigError: `spec` cannot be read, names no codec, or gives settings it does not take.
    """
    return parse(spec, CODECS)


def __getattr__(name: str) -> Any:
    """The class of a listed codec: `from atomo.codecs import TopK`."""
    for codec in CODECS.values():
        if codec.__name__ == name:
            return codec
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
