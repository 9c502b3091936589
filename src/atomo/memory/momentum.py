"""The moving average of gradients, for Signum, which sends the sign of this average.

Bernstein et al., "signSGD: Compressed Optimisation for Non-Convex Problems", ICML 2018.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, final

import torch
from jaxtyping import Float

from atomo.codecs import Codec, Law
from atomo.errors import ConfigError
from atomo.memory.base import Layout, Memory
from atomo.memory.store import Store

__all__ = ["Momentum"]


@final
class Momentum(Memory):
    """Sends m = beta m + (1 - beta) g, m = 0 at first, in place of each gradient g.

    Unsent parts are lost: the law of memories does not hold.
    """

    id: ClassVar[str] = "momentum"
    feeds_back: ClassVar[bool] = False
    has_momentum: ClassVar[bool] = True
    settings: ClassVar[Mapping[str, type]] = MappingProxyType({"beta": float})

    def __init__(self, beta: float = 0.9) -> None:
        """Builds an empty memory.

        Args:
            beta: the weight of the past; higher => longer memory.

        Raises:
            ConfigError: beta is out of range.
        """
        if not 0 <= beta < 1:
            raise ConfigError(f"momentum: beta must be in [0, 1), got {beta}")
        self._beta = beta
        self._average = Store()

    @property
    def applied(self) -> tuple[float, bool]:
        return self._beta, False

    def encode(
        self,
        codec: Codec[Any],
        gradient: Float[torch.Tensor, "..."],
        layout: Layout,
        generator: torch.Generator,
    ) -> Any:
        average = self._average.vector(layout, gradient).view(gradient.shape)
        average.lerp_(gradient, 1 - self._beta)
        # A lossless payload may be a view, and must not be a view of the memory.
        lossless = Law.LOSSLESS in codec.laws
        return codec.encode(gradient.copy_(average) if lossless else average, generator)

    def take_back(self, layout: Layout, sent: Float[torch.Tensor, " n"]) -> None:
        """Drops the gradient, which is part of the average already."""

    def state_dict(self, *, copy: bool = True) -> dict[str, torch.Tensor]:
        return self._average.state_dict(copy)

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        self._average.load_state_dict(state)
