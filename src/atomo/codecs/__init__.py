"""Gradient codecs, by name. To add one: write its module, then list it in CODECS."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from atomo.codecs.atomo_auto import Atomo
from atomo.codecs.base import Codec, Field, Law, Unit
from atomo.codecs.casts import BFloat16, Float16
from atomo.codecs.chunktopk import ChunkTopK
from atomo.codecs.countsketch import CountSketch
from atomo.codecs.dense import Dense
from atomo.codecs.dgc import DGC
from atomo.codecs.dragonn import Dragonn
from atomo.codecs.entrywise import Entrywise
from atomo.codecs.fourier import Fourier
from atomo.codecs.lss import LSS
from atomo.codecs.natural import Natural
from atomo.codecs.onebit import OneBit
from atomo.codecs.qsgd import QSGD
from atomo.codecs.randk import RandK
from atomo.codecs.signs import EFSignSGD, SignSGD, Signum
from atomo.codecs.sketchml import SketchML
from atomo.codecs.spec import parse
from atomo.codecs.svd import SVD
from atomo.codecs.terngrad import TernGrad
from atomo.codecs.threshold import Threshold
from atomo.codecs.topk import TopK

__all__ = [
    "CODECS",
    "DGC",
    "LSS",
    "QSGD",
    "SVD",
    "Atomo",
    "BFloat16",
    "ChunkTopK",
    "Codec",
    "CountSketch",
    "Dense",
    "Dragonn",
    "EFSignSGD",
    "Entrywise",
    "Field",
    "Float16",
    "Fourier",
    "Law",
    "Natural",
    "OneBit",
    "RandK",
    "SignSGD",
    "Signum",
    "SketchML",
    "TernGrad",
    "Threshold",
    "TopK",
    "Unit",
    "make_codec",
]

CODECS: Mapping[str, type[Codec[Any]]] = MappingProxyType(
    {
        codec.id: codec
        for codec in (
            Dense,
            Float16,
            BFloat16,
            SVD,
            Entrywise,
            Fourier,
            Atomo,
            SketchML,
            LSS,
            CountSketch,
            QSGD,
            TernGrad,
            Natural,
            SignSGD,
            Signum,
            EFSignSGD,
            OneBit,
            TopK,
            Threshold,
            RandK,
            ChunkTopK,
            DGC,
            Dragonn,
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
