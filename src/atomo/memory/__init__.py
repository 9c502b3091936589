"""What a worker keeps back, by name. To add one: write its module, then list it in MEMORIES."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from atomo.codecs import Codec, Law
from atomo.memory.base import Layout, Memory
from atomo.memory.dgc import MomentumCorrection
from atomo.memory.momentum import Momentum
from atomo.memory.none import Forget
from atomo.memory.residual import Residual

__all__ = [
    "MEMORIES",
    "Forget",
    "Layout",
    "Memory",
    "Momentum",
    "MomentumCorrection",
    "Residual",
    "default_memory",
]

MEMORIES: Mapping[str, type[Memory]] = MappingProxyType(
    {memory.id: memory for memory in (Forget, Residual, MomentumCorrection, Momentum)}
)


def default_memory(codec: Codec[Any]) -> str:
    """The memory that `codec` names, or else: none where it is unbiased, a residual elsewhere."""
    if codec.memory is not None:
        return codec.memory
    return Forget.id if Law.UNBIASED in codec.laws else Residual.id
