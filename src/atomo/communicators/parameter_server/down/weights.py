"""The plain way down: all weights, to every worker, at every step."""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from atomo.communicators.parameter_server.down.base import Down
from atomo.communicators.parameter_server.messages import weights_frame
from atomo.wire import Bytes, Flag

__all__ = ["Weights"]


@final
class Weights(Down):
    """Workers need no optimiser, and no memory of what came before."""

    def __init__(self) -> None:
        self.notes = []
        self._step, self._weights = 0, torch.empty(0)
        self._frames: dict[Flag, Bytes] = {}  # of these weights

    def open(self, step: int, weights: Float[Tensor, " n"]) -> None:
        self._step, self._weights = step, weights
        self._frames.clear()

    def order(self, worker: int, flag: Flag) -> list[Bytes]:
        del worker
        if flag not in self._frames:
            self._frames[flag] = weights_frame(self._step, self._weights, flag)
        return [self._frames[flag]]
