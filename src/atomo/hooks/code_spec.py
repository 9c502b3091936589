"""The `code` of a hook: a codec, or the name of a reduction with its settings."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, final

from atomo.api.validate import as_codec
from atomo.codecs import Codec, Law
from atomo.config.comm_types import REDUCTIONS
from atomo.exchange.base import Reduction
from atomo.exchange.reductions.allreduce import DenseAllreduce

__all__ = ["CodeSpec", "parse_code", "reductions_by_code"]

ReductionType = type[Reduction[Any, Any]]


@final
@dataclass(frozen=True)
class CodeSpec:
    """A codec, and the reduction that a code names."""

    codec: Codec[Any]
    named: ReductionType | None = None
    """None: the codec decides how payloads are averaged."""

    def reduction(self, *, remembers: bool) -> ReductionType:
        """Returns how payloads are averaged.

        Args:
            remembers: True if there is a memory.
        """
        if self.named is None:
            return reduction_of(self.codec, remembers=remembers)
        return self.named.announced or self.named

    def __str__(self) -> str:
        return f"{self.named.__name__} by {self.codec}" if self.named else str(self.codec)


def reduction_of(codec: Codec[Any], *, remembers: bool) -> ReductionType:
    """Returns the cheapest reduction of a codec.

    Without loss and without a memory, gradients are summed as they are. Payloads that can be summed
    are summed, since the residual does not depend on who sums them. All others are gathered.
    """
    if Law.LOSSLESS in codec.laws and not remembers:
        return DenseAllreduce
    own = REDUCTIONS["Allreduce" if Law.SUMMABLE in codec.laws else "Allgather"]
    return own.announced or own


@cache
def reductions_by_code() -> Mapping[str, ReductionType]:
    """Returns the reductions that a code may name, by name."""
    return MappingProxyType(
        {name.lower(): kind for name, kind in REDUCTIONS.items() if kind.is_code}
    )


def parse_code(code: object) -> CodeSpec:
    """Parses a code: a codec, its specification, or the specification of a reduction, such as
    "powersgd(rank=4)" and "chunked(ratio=0.01, chunk=256)".

    Raises:
        ConfigError: the code is neither, or has unknown settings.
    """
    name = code.partition("(")[0].strip().lower() if isinstance(code, str) else ""
    kind = reductions_by_code().get(name)
    return CodeSpec(as_codec(code)) if kind is None else CodeSpec(kind.codec_for(str(code)), kind)
