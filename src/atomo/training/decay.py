"""Weight decay where momentum is applied by the workers: it has a momentum of its own.

Lin et al., "Deep Gradient Compression: Reducing the Communication Bandwidth for Distributed
Training", ICLR 2018; DGCSGD of their published code.
"""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["DecayMomentum"]


@final
class DecayMomentum:
    """b = m b + wd p, which is added to the mean gradient; with Nesterov, wd p + m b is.

    As momentum is linear, a sum that the workers gave momentum and this are together what plain SGD
    makes of gradient plus decay.
    """

    def __init__(
        self, weights: Float[Tensor, " n"], decay: float, momentum: float, nesterov: bool
    ) -> None:
        self.buffer = torch.zeros_like(weights)
        self._weights, self._decay = weights, decay
        self._momentum, self._nesterov = momentum, nesterov

    def add_to(self, gradient: Float[Tensor, " n"]) -> None:
        """Adds the decay of one step, in place."""
        self.buffer.mul_(self._momentum).add_(self._weights, alpha=self._decay)
        if self._nesterov:
            gradient.add_(self._weights, alpha=self._decay)
            gradient.add_(self.buffer, alpha=self._momentum)
        else:
            gradient.add_(self.buffer)
