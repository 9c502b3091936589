"""Weight sync that sends all weights to every worker at every step."""

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
    """Sync of all weights: workers need neither an optimizer nor an earlier version."""

    def __init__(self, relays: bool = False, dtype: torch.dtype = torch.float32) -> None:
        """Creates the weight sync.

        Args:
            relays: True if workers forward frames, so that the master sends one copy.
            dtype: of the weights in frames. The master keeps full precision; workers get rounded
                weights.
        """
        self.notes = []
        self._relays, self._dtype = relays, dtype
        self._step, self._weights = 0, torch.empty(0)
        self._frames: dict[Flag, Bytes] = {}  # of the open step's weights, by flag

    def open(self, step: int, weights: Float[Tensor, " n"]) -> None:
        # One copy from the device, even if the weights are sent in pieces.
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
