"""Steps that are left out because an average is not finite, on all ranks alike."""

from typing import Any, final

import torch
from torch import Tensor

from atomo.core.devices import to_host
from atomo.exchange.base import Reduction
from atomo.hooks.adapter.chunks import Chunk
from atomo.memory import Memory

__all__ = ["StepSkipper"]

Snapshot = tuple[dict[str, Tensor], dict[str, Tensor]]
"""States of the memory and of the reduction."""


@final
class StepSkipper:
    """Restores the memory after a step with an average that is not finite.

    `begin` runs in the thread that encodes and the rest in the thread that decodes. They share the
    snapshot without a lock, since a step ends before the next one begins.
    """

    def __init__(self, memory: Memory, reduction: Reduction[Any, Any], skips: bool) -> None:
        """Makes a skipper before the first step.

        Args:
            memory: of this rank.
            reduction: the one that may have a state beside the memory.
            skips: True if such steps are left out at all.
        """
        self.skips = skips
        self._memory, self._reduction = memory, reduction
        self._snapshots = skips and bool(memory.vectors)
        self._before: Snapshot | None = None
        self._finite: list[Tensor] = []  # by chunk of this step: True if its average is finite

    def begin(self) -> None:
        """Takes a snapshot before the first chunk of a step; the last chunk may spoil the step."""
        if self._snapshots and self._before is None:
            self._before = self._memory.state_dict(), self._reduction.state_dict()

    def check(self, chunk: Chunk) -> None:
        """Checks averages as the caller that skips the step checks them."""
        # Half precision may overflow where the mean in float32 did not.
        if self.skips:
            wholes = [*chunk.gradients.values()] if chunk.whole is None else [chunk.whole]
            self._finite.append(torch.stack([whole.isfinite().all() for whole in wholes]).all())

    def close(self) -> bool:
        """Ends the step. Returns True if it is left out, with the memory as before the step."""
        # Once for all chunks: each read from a device waits for the device.
        skipped = not all(bool(finite) for finite in to_host(self._finite))
        if skipped and self._before is not None:
            memory, reduction = self._before
            self._memory.load_state_dict(memory)
            self._reduction.load_state_dict(reduction)
        self._before = None
        self._finite.clear()
        return skipped
