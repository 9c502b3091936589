"""PowerSGD: one step of a power iteration on the mean gradient, by two sums of small factors.

Of each matrix M_w, a rank's gradient together with what it kept, and with Q of the step before:

    P = sum of M_w Q        the first sum
    P = orthonormal(P)
    Q = mean of M_w^T P     the second sum
    mean = P Q^T

The mean is a projection of the mean of M_w, and a rank keeps M_w - P (M_w^T P)^T, what the
projection left of its own. (Public code keeps M_w - P Q^T: the sum over all ranks is the same, and
so is every mean to come, but what differs between ranks piles up in their memories for ever.)

Vogels, Karimireddy and Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed
Optimization", NeurIPS 2019, algorithms 1 and 2.
"""

from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from atomo.exchange.base import ALL_USED, Usage
from atomo.exchange.reductions.low_rank import Held, LowRankReduction, Q
from atomo.fusion import Bucket

__all__ = ["PowerSGD"]


@final
class PowerSGD(LowRankReduction):
    """Two sums a bucket and step."""

    kept: ClassVar[tuple[str, ...]] = (Q,)

    def encode(
        self, bucket: Bucket, flat: Float[Tensor, " n"], step: int, usage: Usage = ALL_USED
    ) -> Held:
        """Computes P of each matrix, of this rank alone."""
        del step
        held = self.hold(bucket, flat, usage.unused)
        left = held.factors.left
        for matrix, whole, p in zip(held.factors.matrices, held.wholes, left.factors, strict=True):
            torch.mm(whole, self.warm_factor(Q, matrix, flat.device), out=p)
        self.copy_dense(held, flat)
        return held

    def exchange(self, bucket: Bucket, encoded: Held, step: int) -> Held:
        what = f"of bucket {bucket.number} of step {step}"
        left, right = encoded.factors.left, encoded.factors.right
        self.sum(left.flat, f"P {what}")
        left.orthonormalise()
        project(encoded)
        self.sum(right.low, f"Q {what}")
        return encoded

    def decode(self, bucket: Bucket, received: Held, step: int, out: Float[Tensor, " n"]) -> None:
        del bucket, step
        factors = received.factors
        left, right = factors.left, factors.right
        factors.pour(left.dense * self._share, out)
        right.low.mul_(self._share)
        means = factors.matrices_in(out)
        for matrix, p, q, mean in zip(
            factors.matrices, left.factors, right.factors, means, strict=True
        ):
            torch.mm(p, q.T, out=mean)
            self._warm.keep(Q + matrix.name, q)

    def sent_bytes(self, encoded: Held, received: Held) -> int:
        del received
        return encoded.factors.left.flat.nbytes + encoded.factors.right.low.nbytes


def project(held: Held) -> None:
    """Computes Q of each matrix, of this rank alone; the memory keeps what P Q^T leaves."""
    left, right = held.factors.left, held.factors.right
    for whole, p, q in zip(held.wholes, left.factors, right.factors, strict=True):
        torch.mm(whole.T, p, out=q)
        whole.addmm_(p, q.T, alpha=-1)
