"""Weight decay that PyTorch's update rules do not have.

One decays only some parameters. The other has its own momentum, for workers that apply momentum to
their gradients.

Lin et al., "Deep Gradient Compression: Reducing the Communication Bandwidth for Distributed
Training", ICLR 2018; DGCSGD of their published code.
"""

from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from atomo.fusion import Bucket

__all__ = ["DecayMomentum", "DecoupledDecay", "PlainDecay", "decayed_spans"]


def decayed_spans(buckets: Sequence[Bucket], norms: bool) -> tuple[slice, ...]:
    """Returns the positions of decaying parameters: all, or without `norms` those of at least two
    dimensions.

    Scales of norms and biases have one dimension. Decay of scales does not regularise, since the
    norm undoes it, and there is little to regularise in biases (Goyal et al., "Accurate, Large
    Minibatch SGD", 2017, section 3; He et al., "Bag of Tricks", 2019).
    """
    if norms:
        return (slice(None),)
    return tuple(
        slice(bucket.offset + slot.start, bucket.offset + slot.stop)
        for bucket in buckets
        for slot in bucket.slots
        if len(slot.shape) > 1
    )


@final
class PlainDecay:
    """Weight decay wd p of some parameters; SGD and Adam add it to the gradient of all."""

    def __init__(self, weights: Float[Tensor, " n"], decay: float, spans: Sequence[slice]) -> None:
        self._weights, self._decay, self._spans = weights, decay, spans

    def add_to(self, gradient: Float[Tensor, " n"]) -> None:
        """Adds the decay of one step, in place."""
        for span in self._spans:
            gradient[span].add_(self._weights[span], alpha=self._decay)


@final
class DecoupledDecay:
    """Weight decay of AdamW and Muon: p - lr wd p, beside the step.

    Loshchilov and Hutter, "Decoupled Weight Decay Regularization", ICLR 2019.
    """

    def __init__(self, weights: Float[Tensor, " n"], decay: float, spans: Sequence[slice]) -> None:
        self._weights, self._decay, self._spans = weights, decay, spans

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Shrinks the weights before a step with this learning rate."""
        for span in self._spans:
            self._weights[span].mul_(1 - rate * self._decay)


@final
class DecayMomentum:
    """Weight decay with momentum: adds b = m b + wd p to the mean gradient; Nesterov: wd p + m b.

    Momentum is linear: the workers' sums with momentum plus this buffer are equal to the momentum
    buffer of plain SGD on gradient plus decay.
    """

    def __init__(
        self,
        weights: Float[Tensor, " n"],
        decay: float,
        momentum: float,
        nesterov: bool,
        spans: Sequence[slice] = (slice(None),),
    ) -> None:
        self.buffer = torch.zeros_like(weights)
        self._plain = PlainDecay(weights, decay, spans)
        self._momentum, self._nesterov = momentum, nesterov

    def add_to(self, gradient: Float[Tensor, " n"]) -> None:
        """Adds the decay of one step, in place."""
        self._plain.add_to(self.buffer.mul_(self._momentum))
        if self._nesterov:
            self._plain.add_to(gradient)
            gradient.add_(self.buffer, alpha=self._momentum)
        else:
            gradient.add_(self.buffer)
