"""Steps of the hooks for FSDP2: the averages of one backward pass."""

from typing import final

from torch.autograd import Variable

from atomo.hooks.adapter.chunks import Chunk
from atomo.hooks.adapter.exchange import Exchange
from atomo.hooks.optimizers.momentum_watch import MomentumWatch

__all__ = ["BackwardSteps"]


@final
class BackwardSteps:
    """Averages of all modules; the averages of one backward pass are one step."""

    def __init__(self, exchange: Exchange, watch: MomentumWatch | None) -> None:
        self._exchange, self._watch, self._begun = exchange, watch, False

    def average(self, chunk: Chunk) -> None:
        """Averages one module's gradients."""
        self._begun = True
        self._exchange.submit(chunk, 1.0, False, lambda: None)
        self._exchange.finish()
        # If the inputs of a module need no gradient, FSDP2 runs its hook at the end of the pass, in
        # a callback queued before the first hook. A failed pass drops its callbacks, so that a flag
        # for "queued" could stay set: each hook queues one.
        try:
            Variable._execution_engine.queue_callback(self._end)
        except RuntimeError:  # no backward pass runs: a pipeline schedule reduces after it
            self._end()

    def _end(self) -> None:
        if self._begun:
            self._begun = False
            self._exchange.end()
