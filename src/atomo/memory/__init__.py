"""What a worker keeps back, by name. To add one: write its module, then list it in MEMORIES."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from atomo.codecs import Codec, Law
from atomo.memory.base import Memory
from atomo.memory.none import Forget
from atomo.memory.residual import Residual

__all__ = ["MEMORIES", "Forget", "Memory", "Residual", "default_memory"]

MEMORIES: Mapping[str, type[Memory]] = MappingProxyType(
    {memory.id: memory for memory in (Forget, Residual)}
)


def default_memory(codec: Codec[Any]) -> str:
    """The memory that `codec` needs: none where it is unbiased, else a residual."""
    return Forget.id if Law.UNBIASED in codec.laws else Residual.id
