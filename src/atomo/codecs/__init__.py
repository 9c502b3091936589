"""Gradient codecs, by name. To add one: write its module in its family, then list it in CODECS, and
its class below, where checkers and editors look for it.

Every class is here as well, with its settings as arguments of its constructor:

>>> from atomo import codecs
>>> codecs.TopK(ratio=0.001, values=codecs.QSGD(bits=2)) == make_codec(
...     "topk(ratio=0.001, values=qsgd(bits=2))"
... )
True
"""

from typing import TYPE_CHECKING, Any, Final

from atomo.codecs.base import Codec, Field, Granularity, Law
from atomo.codecs.spec import parse_codec
from atomo.core.tables import Table

if TYPE_CHECKING:  # `__getattr__` imports each when it is asked for
    from atomo.codecs.dense.bf16 import BFloat16 as BFloat16
    from atomo.codecs.dense.dense import Dense as Dense
    from atomo.codecs.dense.fp16 import Float16 as Float16
    from atomo.codecs.levels.lloydmax import LloydMax as LloydMax
    from atomo.codecs.levels.natural import Natural as Natural
    from atomo.codecs.levels.qsgd import QSGD as QSGD
    from atomo.codecs.levels.terngrad import TernGrad as TernGrad
    from atomo.codecs.signs.efsignsgd import EFSignSGD as EFSignSGD
    from atomo.codecs.signs.onebit import OneBit as OneBit
    from atomo.codecs.signs.signsgd import SignSGD as SignSGD
    from atomo.codecs.signs.signsgd import Signum as Signum
    from atomo.codecs.sketches.countsketch import CountSketch as CountSketch
    from atomo.codecs.sketches.lss import LSS as LSS
    from atomo.codecs.sketches.sketchml import SketchML as SketchML
    from atomo.codecs.sparse.chunktopk import ChunkTopK as ChunkTopK
    from atomo.codecs.sparse.dgc import DGC as DGC
    from atomo.codecs.sparse.dragonn import Dragonn as Dragonn
    from atomo.codecs.sparse.randk import RandK as RandK
    from atomo.codecs.sparse.rows import Rows as Rows
    from atomo.codecs.sparse.threshold import Threshold as Threshold
    from atomo.codecs.sparse.tiletopk import TileTopK as TileTopK
    from atomo.codecs.sparse.topk import TopK as TopK
    from atomo.codecs.spectral.atomo_auto import Atomo as Atomo
    from atomo.codecs.spectral.entrywise import Entrywise as Entrywise
    from atomo.codecs.spectral.fourier import Fourier as Fourier
    from atomo.codecs.spectral.svd import SVD as SVD

__all__ = ["CODECS", "Codec", "Field", "Granularity", "Law", "make_codec"]

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
        "lloydmax": "levels.lloydmax:LloydMax",
        "natural": "levels.natural:Natural",
        "signsgd": "signs.signsgd:SignSGD",
        "signum": "signs.signsgd:Signum",
        "efsignsgd": "signs.efsignsgd:EFSignSGD",
        "onebit": "signs.onebit:OneBit",
        "topk": "sparse.topk:TopK",
        "threshold": "sparse.threshold:Threshold",
        "randk": "sparse.randk:RandK",
        "chunktopk": "sparse.chunktopk:ChunkTopK",
        "tiletopk": "sparse.tiletopk:TileTopK",
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
    return parse_codec(spec, CODECS)


if not TYPE_CHECKING:  # a checker would take any name for one that is there

    def __getattr__(name: str) -> Any:
        """Imports the class of a listed codec: `from atomo.codecs import TopK`."""
        for codec, place in CODECS.places.items():
            if place.endswith(f":{name}"):
                return CODECS[codec]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Lists the public names, which include the classes of all codecs."""
    return sorted([*__all__, *(place.partition(":")[2] for place in CODECS.places.values())])
