"""The exchange of the fragments of a model, and of its buffers, in rounds of local steps.

A round is one step of the exchange, whatever the number of fragments: schedules of codecs count
rounds, and each fragment has each number once.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import final

import torch
from torch import Tensor

from atomo.errors import AtomoError, CheckpointError, Diverged
from atomo.hooks.adapter.chunks import Chunk
from atomo.hooks.adapter.exchange import Exchange
from atomo.hooks.states.exchange_state import StateDict

__all__ = ["FragmentExchange"]

Bucket = Mapping[str, Tensor]
"""The parameters of a bucket, by name."""


@final
class FragmentExchange:
    """Averages the differences of one fragment at a time."""

    def __init__(
        self,
        exchange: Exchange,
        fragments: Sequence[Sequence[Bucket]],
        buffers: Mapping[str, Tensor],
        buffer_exchange: Exchange | None,
    ) -> None:
        """Makes an exchange with nothing in flight.

        Args:
            exchange: averages differences.
            fragments: the buckets of each fragment.
            buffers: the floating-point buffers of the model, by name.
            buffer_exchange: averages the buffers, uncompressed; None if there are none.
        """
        self.exchange = exchange
        self._fragments, self._buffers = fragments, buffers
        self._buffer_exchange = buffer_exchange
        self._means: dict[str, Tensor] = {}  # of the fragment in flight, or differences until then
        self._before: StateDict | None = None  # where a difference is not finite
        firsts = [0]
        for buckets in fragments:
            firsts.append(firsts[-1] + len(buckets))
        self._firsts = firsts  # the number of the first bucket of each fragment

    @property
    def names(self) -> list[list[str]]:
        """The names of the parameters of each fragment."""
        return [[name for bucket in buckets for name in bucket] for buckets in self._fragments]

    def begin(self, fragment: int, difference: Callable[[str], Tensor]) -> None:
        """Begins to average the differences of a fragment, in background threads.

        Args:
            fragment: the number of the fragment.
            difference: returns the difference of a parameter, a tensor that is not used elsewhere.
        """
        buckets = self._fragments[fragment]
        self._means = {name: difference(name) for bucket in buckets for name in bucket}
        if not all_finite(self._means):
            # Low-rank reductions find out after the memory has added the difference.
            self._before = self.exchange.state_dict()
        for number, bucket in enumerate(buckets, self._firsts[fragment]):
            chunk = Chunk(number, {name: self._means[name] for name in bucket})
            last = number + 1 == self._firsts[-1]
            self.exchange.submit(chunk, 1.0, last, lambda: None)

    def finish(self) -> dict[str, Tensor]:
        """Returns the mean differences of the fragment in flight.

        Raises:
            Diverged: a difference is not finite. No memory has it, and the weights of no rank are
                changed.
            AtomoError: the average failed, on this rank or another.
        """
        try:
            self.exchange.finish()
        except Diverged as error:
            if self._before is not None:
                self.exchange.load_state_dict(self._before)
            raise diverged(str(error)) from error
        for name, mean in self._means.items():
            if not bool(mean.isfinite().all()):
                raise diverged(f"the mean difference of {name} is not finite")
        return self._means

    def clear(self) -> None:
        """Forgets the fragment in flight, whose means were used."""
        self._means = {}

    def average_buffers(self) -> None:
        """Averages the buffers, in place."""
        if self._buffer_exchange is not None:
            self._buffer_exchange.submit(Chunk(0, self._buffers), 1.0, True, lambda: None)
            self._buffer_exchange.finish()

    def state_dict(self) -> dict[str, Tensor]:
        """Returns copies of the means in flight, by name, after a wait for them."""
        return {name: mean.clone() for name, mean in self.finish().items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Replaces the means in flight.

        Raises:
            CheckpointError: the state belongs to another model.
        """
        parameters = {n: p for f in self._fragments for bucket in f for n, p in bucket.items()}
        for name, mean in state.items():
            if name not in parameters or parameters[name].shape != mean.shape:
                raise CheckpointError(f"the state has {name!r} in flight, of another model")
        self._means = {
            name: torch.empty_like(mean, device=parameters[name].device).copy_(mean)
            for name, mean in state.items()
        }


def all_finite(tensors: Mapping[str, Tensor]) -> bool:
    """True if no tensor holds NaN or infinity. Waits for a device once."""
    return bool(torch.stack([tensor.isfinite().all() for tensor in tensors.values()]).all())


def diverged(reason: str) -> AtomoError:
    """Builds the error for a difference that is not finite."""
    return Diverged(
        f"{reason}; here a gradient is the difference between the anchor and the weights of a "
        "replica: clip gradients, lower the inner learning rate, or continue from a checkpoint"
    )
