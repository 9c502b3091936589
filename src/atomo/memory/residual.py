"""Error feedback: adds to each gradient the part of the last one that was not sent.

Seide et al., "1-Bit Stochastic Gradient Descent", Interspeech 2014; Karimireddy et al., "Error
Feedback Fixes SignSGD and other Gradient Compression Schemes", ICML 2019.
"""

from collections.abc import Mapping
from typing import ClassVar, final

from jaxtyping import Float
from torch import Tensor

from atomo.memory.base import Memory

__all__ = ["Residual"]


@final
class Residual(Memory):
    """Keeps everything that was not sent, undamped."""

    id: ClassVar[str] = "residual"
    keeps: ClassVar[bool] = True

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}

    def compensate(self, key: str, gradient: Float[Tensor, "..."]) -> None:
        if key in self._kept:
            gradient.add_(self._kept[key])

    def keep(self, key: str, unsent: Float[Tensor, "..."]) -> None:
        if key in self._kept:
            self._kept[key].copy_(unsent)
        else:
            self._kept[key] = unsent.clone()

    def forget(self, key: str) -> None:
        self._kept.pop(key, None)

    def take_back(self, key: str, sent: Float[Tensor, "..."]) -> None:
        if key in self._kept:
            self._kept[key].add_(sent)
        else:
            self._kept[key] = sent.clone()

    def state_dict(self) -> dict[str, Tensor]:
        return {key: kept.clone() for key, kept in self._kept.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self._kept = {key: kept.clone() for key, kept in state.items()}
