"""Gradient codecs, by name. To add one: write its module in its family, then list it in CODECS."""

from typing import Any, Final

from atomo.codecs.base import Codec, Field, Law, Unit
from atomo.codecs.spec import parse
from atomo.tables import Table

__all__ = ["CODECS", "Codec", "Field", "Law", "Unit", "make_codec"]

CODECS: Final[Table[type[Codec[Any]]]] = Table(
    __name__,
    {
        "sgd": "dense.dense:Dense",
        "fp16": "dense.fp16:Float16",
        "bf16": "dense.bf16:BFloat16",
        "svd": "spectral.svd:SVD",
        "entrywise": "spectral.entrywise:Entrywise",
        "fourier": "spectral.fourier:Fourier",
        "atomo": "spectral.atomo_auto:Atomo",
        "sketchml": "sketches.sketchml:SketchML",
        "lss": "sketches.lss:LSS",
        "countsketch": "sketches.countsketch:CountSketch",
        "qsgd": "levels.qsgd:QSGD",
        "terngrad": "levels.terngrad:TernGrad",
        "natural": "levels.natural:Natural",
        "signsgd": "signs.signsgd:SignSGD",
        "signum": "signs.signsgd:Signum",
        "efsignsgd": "signs.efsignsgd:EFSignSGD",
        "onebit": "signs.onebit:OneBit",
        "topk": "sparse.topk:TopK",
        "threshold": "sparse.threshold:Threshold",
        "randk": "sparse.randk:RandK",
        "chunktopk": "sparse.chunktopk:ChunkTopK",
        "dgc": "sparse.dgc:DGC",
        "dragonn": "sparse.dragonn:Dragonn",
        "rows": "sparse.rows:Rows",
    },
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
    for codec, place in CODECS.places.items():
        if place.endswith(f":{name}"):
            return CODECS[codec]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
