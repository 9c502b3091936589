"""PowerSGD: one step of a power iteration on the mean gradient, by two sums of small factors.

For each matrix M_w, the gradient of a rank plus its residual, and Q of the step before:

    P = sum of M_w Q        the first sum
    P = orthonormal(P)
    Q = mean of M_w^T P     the second sum
    mean = P Q^T

The mean is a projection of the mean of M_w. The new residual of a rank is M_w - P (M_w^T P)^T, the
error of the projection of its own matrix. (Public code has the residual M_w - P Q^T: its sum over
all ranks is the same, and so are all later means, but the differences between ranks accumulate in
their memories without a bound.)

Vogels, Karimireddy and Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed
Optimization", NeurIPS 2019, algorithms 1 and 2.
"""

from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from atomo.exchange.base import ALL_USED, Usage
from atomo.exchange.reductions.low_rank import FactorBatch, LowRankReduction, Q
from atomo.fusion import Bucket

__all__ = ["PowerSGD"]


@final
class PowerSGD(LowRankReduction):
    """Two sums for each bucket and step."""

    warm_prefixes: ClassVar[tuple[str, ...]] = (Q,)

    def encode(
        self, bucket: Bucket, flat: Float[Tensor, " n"], step: int, usage: Usage = ALL_USED
    ) -> FactorBatch:
        """Computes P of each matrix, of this rank alone."""
        del step
        batch = self.accumulate(bucket, flat, usage.unused)
        left = batch.factors.left
        for matrix, total, p in zip(
            batch.factors.matrices, batch.accumulated, left.factors, strict=True
        ):
            torch.mm(total, self.warm_factor(Q, matrix, flat.device), out=p)
        self.copy_dense(batch, flat)
        return batch

    def exchange(self, bucket: Bucket, encoded: FactorBatch, step: int) -> FactorBatch:
        label = f"of bucket {bucket.number} of step {step}"
        left, right = encoded.factors.left, encoded.factors.right
        self.sum(left.flat, f"P {label}")
        left.orthonormalise()
        project(encoded)
        self.sum(right.low, f"Q {label}")
        return encoded

    def decode(
        self, bucket: Bucket, received: FactorBatch, step: int, out: Float[Tensor, " n"]
    ) -> None:
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

    def sent_bytes(self, encoded: FactorBatch, received: FactorBatch) -> int:
        del received
        return encoded.factors.left.flat.nbytes + encoded.factors.right.low.nbytes


def project(batch: FactorBatch) -> None:
    """Computes Q of each matrix of this rank, and subtracts P Q^T, which leaves the residual."""
    left, right = batch.factors.left, batch.factors.right
    for total, p, q in zip(batch.accumulated, left.factors, right.factors, strict=True):
        torch.mm(total.T, p, out=q)
        total.addmm_(p, q.T, alpha=-1)
