"""No memory: unsent parts of a gradient are lost. Right for unbiased codecs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, final

import torch
from jaxtyping import Float

from atomo.codecs import Codec
from atomo.codecs.rows import RowGradient
from atomo.errors import CheckpointError
from atomo.memory.base import Layout, Memory

__all__ = ["NoMemory"]


@final
class NoMemory(Memory):
    """Memory without a state."""

    id: ClassVar[str] = "none"
    feeds_back: ClassVar[bool] = False
    encodes_rows: ClassVar[bool] = True
    vectors: ClassVar[tuple[str, ...]] = ()

    @property
    def accepts_half(self) -> bool:
        return True

    def encode(
        self,
        codec: Codec[Any],
        gradient: Float[torch.Tensor, "..."],
        layout: Layout,
        generator: torch.Generator,
    ) -> Any:
        del layout
        return codec.encode(gradient, generator)

    def encode_all(
        self,
        codec: Codec[Any],
        gradients: Sequence[Float[torch.Tensor, "..."]],
        layouts: Sequence[Layout],
        generators: Sequence[torch.Generator],
    ) -> Iterator[Any]:
        del layouts
        yield from codec.encode_all(gradients, generators)

    def encode_rows(
        self,
        codec: Codec[Any],
        gradient: RowGradient,
        layout: Layout,
        generator: torch.Generator,
    ) -> Any:
        del layout
        return codec.encode_rows(gradient, generator)

    def take_back(self, layout: Layout, sent: Float[torch.Tensor, " n"]) -> None:
        """Drops the gradient."""

    def state_dict(self, *, copy: bool = True) -> dict[str, torch.Tensor]:
        del copy
        return {}

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        if state:
            raise CheckpointError(f"memory 'none' cannot hold a state of {len(state)} tensors")
