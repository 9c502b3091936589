"""Momentum that a memory applies before a codec selects entries.

The codec receives it, so that it may apply the momentum and select in one pass over memory.

Lin et al., "Deep Gradient Compression", ICLR 2018, sections 3.1 to 3.3.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float

__all__ = ["MomentumState"]


@dataclass(frozen=True)
class MomentumState:
    """Update rule u = m u + g, which is added to v, the unsent part. Nesterov: u = m (u + g), and
    u + g is added to v.
    """

    velocity: Float[torch.Tensor, "..."]
    """u, of the gradient's shape; changed in place."""
    factor: float
    """m; higher => longer memory of past gradients."""
    nesterov: bool
    masking: bool
    """True if sent entries lose the part of u that would arrive late."""
    workers: int = 1
    """Number of workers whose momentum is averaged."""

    def grow(self, gradient: Float[torch.Tensor, "*s"]) -> Float[torch.Tensor, "*s"]:
        """Updates u, and returns the vector to add to v. Overwrites the gradient."""
        if self.nesterov:
            self.velocity.add_(gradient).mul_(self.factor)
            return gradient.float().add_(self.velocity)  # in place unless it is in half precision
        # One pass over memory; mul_ and add_ would be two.
        return torch.add(gradient, self.velocity, alpha=self.factor, out=self.velocity)

    def in_time(
        self, grown: Float[torch.Tensor, "*s"], waiting: Float[torch.Tensor, "*s"]
    ) -> Float[torch.Tensor, "*s"]:
        """Returns the timely part of u where all entries are sent. If nothing waits, it is all of
        u.

        What waits is sent late, and its momentum would push again in a direction already taken.
        |waiting| / |grown| is the delay in steps. Heavy-ball momentum keeps the share |grown| /
        (|grown| + |waiting|) of each entry: with all momentum, a delay of one step would lower the
        largest stable learning rate 28-fold (benchmarks/delay_stability.py). Nesterov's term
        cancels a delay of up to a step, so that all entries keep the share min(1, W^2 ||grown|| /
        ||waiting||), of Euclidean norms: single entries also wait by chance. The mean of W workers
        bears longer delays, presumably because each has noise of its own that waits; W^2 is from
        trials (docs/convergence.md).

        This extends the paper, whose codecs leave most entries unsent.
        """
        if self.nesterov:
            share = torch.linalg.vector_norm(grown) / torch.linalg.vector_norm(waiting)
            share = share.mul_(self.workers**2).nan_to_num_(1.0).clamp_(max=1.0)
            timely: torch.Tensor = self.velocity * share
            return timely
        new, late = grown.abs(), waiting.abs()
        return new.div_(late.add_(new)).nan_to_num_(1.0).mul_(self.velocity)
