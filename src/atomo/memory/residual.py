"""Error feedback: adds to each gradient the part of the last one that was not sent.

Seide et al., "1-Bit Stochastic Gradient Descent", Interspeech 2014; Karimireddy et al., "Error
Feedback Fixes SignSGD and other Gradient Compression Schemes", ICML 2019.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, final

from jaxtyping import Float
from torch import Generator, Tensor

from atomo.codecs import Codec, Law
from atomo.memory.base import Layout, Memory
from atomo.memory.store import Store

__all__ = ["Residual"]


@final
class Residual(Memory):
    """Keeps everything that was not sent, undamped."""

    id: ClassVar[str] = "residual"
    keeps: ClassVar[bool] = True

    def __init__(self) -> None:
        self._kept = Store()

    def encode(
        self,
        codec: Codec[Any],
        gradient: Float[Tensor, "..."],
        layout: Layout,
        generator: Generator,
    ) -> Any:
        if Law.LOSSLESS not in codec.laws:
            kept = self._kept.vector(layout, gradient).view(gradient.shape)
            return codec.encode_residual(gradient, kept, generator)
        if self._kept.holds(layout):  # nothing will be left
            kept = self._kept.vector(layout, gradient).view(gradient.shape)
            gradient.add_(kept)
            kept.zero_()
        return codec.encode(gradient, generator)

    def take_back(self, layout: Layout, sent: Float[Tensor, " n"]) -> None:
        self._kept.vector(layout, sent).add_(sent)

    def state_dict(self) -> dict[str, Tensor]:
        return self._kept.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self._kept.load_state_dict(state)
