"""The plain way down: all weights, to every worker, at every step."""

from collections.abc import Mapping
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from atomo.core.devices import to_host
from atomo.exchange.parameter_server.frames.messages import weights_frame
from atomo.exchange.parameter_server.frames.relay import relay_frames
from atomo.exchange.parameter_server.weight_sync.base import WeightSync
from atomo.wire import Bytes, Flag

__all__ = ["FullSync"]


@final
class FullSync(WeightSync):
    """Workers need no optimiser, and no memory of what came before."""

    def __init__(self, relays: bool = False, dtype: torch.dtype = torch.float32) -> None:
        """Creates the weight sync.

        Args:
            relays: whether workers hand the weights on, so that one copy leaves the master.
            dtype: what they travel as. The master keeps its own; workers get those rounded.
        """
        self.notes = []
        self._relays, self._dtype = relays, dtype
        self._step, self._weights = 0, torch.empty(0)
        self._frames: dict[Flag, Bytes] = {}  # of these weights

    def open(self, step: int, weights: Float[Tensor, " n"]) -> None:
        # From a device in one go, whatever pieces they travel in.
        self._step, (self._weights,) = step, to_host([weights.to(self._dtype)])
        self._frames.clear()

    def commands(self, flags: Mapping[int, Flag]) -> list[tuple[int, Bytes]]:
        if self._relays and len(flags) > 1:
            return [*relay_frames(self._step, self._weights, flags)]
        return [(worker, self._frame(flag)) for worker, flag in flags.items()]

    def _frame(self, flag: Flag) -> Bytes:
        if flag not in self._frames:
            self._frames[flag] = weights_frame(self._step, self._weights, flag)
        return self._frames[flag]
