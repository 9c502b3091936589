"""Error feedback: adds to each gradient the part of the last one that was not sent.

Seide et al., "1-Bit Stochastic Gradient Descent", Interspeech 2014; Karimireddy et al., "Error
Feedback Fixes SignSGD and other Gradient Compression Schemes", ICML 2019.
"""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, final

from jaxtyping import Float
from torch import Generator, Tensor

from atomo.codecs import Codec, Law
from atomo.errors import ConfigError
from atomo.memory.base import Layout, Memory
from atomo.memory.store import Store

__all__ = ["Residual"]


@final
class Residual(Memory):
    """Encodes beta r + gamma g of a gradient g, and keeps as r what was not sent of it.

    With both at 1, which is the default, nothing is ever lost. Public code often leaks with a beta
    of 0.9 and does not say so.
    """

    id: ClassVar[str] = "residual"
    keeps: ClassVar[bool] = True
    settings: ClassVar[Mapping[str, type]] = MappingProxyType({"beta": float, "gamma": float})

    def __init__(self, beta: float = 1.0, gamma: float = 1.0) -> None:
        """An empty memory.

        Args:
            beta: the weight of what was kept; lower => it leaks.
            gamma: the weight of the gradient.

        Raises:
            ConfigError: one of them is out of range.
        """
        if not 0 <= beta <= 1 or not 0 < gamma < math.inf:
            raise ConfigError(
                f"residual: beta must be in [0, 1] and gamma above 0, got {beta} and {gamma}"
            )
        self._beta, self._gamma = beta, gamma
        self._kept = Store()

    def encode(
        self,
        codec: Codec[Any],
        gradient: Float[Tensor, "..."],
        layout: Layout,
        generator: Generator,
    ) -> Any:
        if self._gamma != 1:
            gradient.mul_(self._gamma)
        if Law.LOSSLESS not in codec.laws:
            kept = self._kept.vector(layout, gradient).view(gradient.shape)
            if self._beta != 1:
                kept.mul_(self._beta)
            return codec.encode_residual(gradient, kept, generator)
        if self._kept.holds(layout):  # nothing will be left
            kept = self._kept.vector(layout, gradient).view(gradient.shape)
            gradient.add_(kept, alpha=self._beta)
            kept.zero_()
        return codec.encode(gradient, generator)

    def take_back(self, layout: Layout, sent: Float[Tensor, " n"]) -> None:
        self._kept.vector(layout, sent).add_(sent)

    def state_dict(self) -> dict[str, Tensor]:
        return self._kept.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self._kept.load_state_dict(state)
