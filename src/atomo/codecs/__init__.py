"""Gradient codecs, by name. To add one: write its module, then list it in CODECS."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from atomo.codecs.base import Codec, Field, Law, Unit
from atomo.codecs.dense.casts import BFloat16, Float16
from atomo.codecs.dense.dense import Dense
from atomo.codecs.levels.natural import Natural
from atomo.codecs.levels.qsgd import QSGD
from atomo.codecs.levels.terngrad import TernGrad
from atomo.codecs.signs.onebit import OneBit
from atomo.codecs.signs.signsgd import EFSignSGD, SignSGD, Signum
from atomo.codecs.sketches.countsketch import CountSketch
from atomo.codecs.sketches.lss import LSS
from atomo.codecs.sketches.sketchml import SketchML
from atomo.codecs.sparse.chunktopk import ChunkTopK
from atomo.codecs.sparse.dgc import DGC
from atomo.codecs.sparse.dragonn import Dragonn
from atomo.codecs.sparse.randk import RandK
from atomo.codecs.sparse.threshold import Threshold
from atomo.codecs.sparse.topk import TopK
from atomo.codecs.spec import parse
from atomo.codecs.spectral.atomo_auto import Atomo
from atomo.codecs.spectral.entrywise import Entrywise
from atomo.codecs.spectral.fourier import Fourier
from atomo.codecs.spectral.svd import SVD

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
