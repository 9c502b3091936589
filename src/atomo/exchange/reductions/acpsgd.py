"""ACP-SGD: PowerSGD's two sums on alternate steps, so that a step has one.

For each matrix M_w, the gradient of a rank plus its residual:

    odd steps:   Q = orthonormal(Q of the step before), P = mean of M_w Q
    even steps:  P = orthonormal(P of the step before), Q = mean of M_w^T P

The mean is P Q^T. The new residual of a rank is M_w without the product of the fixed factor and
the factor of this rank. A step has half the latency and about half the bytes of PowerSGD, but a
power iteration takes two steps.

The fixed factor is one step old, so the residual is larger than with PowerSGD, and momentum after
the average repeats the late updates: LeNet diverges where PowerSGD trains. So the default memory
with momentum applies the momentum before the factors.

Zhang, Zhang, Shi, Chu and Li, "Evaluation and Optimization of Gradient Compression for Distributed
Deep Learning", ICDCS 2023.
"""

from dataclasses import replace
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from atomo.exchange.base import ALL_USED, Usage
from atomo.exchange.reductions.factors import Factors
from atomo.exchange.reductions.low_rank import FactorBatch, LowRankReduction, P, Q
from atomo.fusion import Bucket
from atomo.memory import MomentumCorrection

__all__ = ["ACPSGD"]


@final
class ACPSGD(LowRankReduction):
    """One sum for each bucket and step.

    The number of the step decides which factor is sent. A resume continues this number, so that a
    resumed run sends the same factors as a run without an interrupt.
    """

    momentum_memory: ClassVar[str | None] = MomentumCorrection.id
    warm_prefixes: ClassVar[tuple[str, ...]] = (P, Q)

    def encode(
        self, bucket: Bucket, flat: Float[Tensor, " n"], step: int, usage: Usage = ALL_USED
    ) -> FactorBatch:
        """Computes the factor of each matrix that this step sends, of this rank alone."""
        batch = self.accumulate(bucket, flat, usage.unused)
        factors, odd = batch.factors, step % 2 == 1
        self._fix(factors, odd)
        left, right = factors.left.factors, factors.right.factors
        for total, p, q in zip(batch.accumulated, left, right, strict=True):
            torch.mm(total, q, out=p) if odd else torch.mm(total.T, p, out=q)
            total.addmm_(p, q.T, alpha=-1)
        batch = replace(batch, side=factors.left if odd else factors.right)
        self.copy_dense(batch, flat)
        return batch

    def exchange(self, bucket: Bucket, encoded: FactorBatch, step: int) -> FactorBatch:
        label = f"the factors of bucket {bucket.number} of step {step}"
        self.sum(encoded.side.flat, label)
        return encoded

    def decode(
        self, bucket: Bucket, received: FactorBatch, step: int, out: Float[Tensor, " n"]
    ) -> None:
        del bucket, step
        factors, side = received.factors, received.side
        side.flat.mul_(self._share)
        factors.pour(side.dense, out)
        means = factors.matrices_in(out)
        for p, q, mean in zip(factors.left.factors, factors.right.factors, means, strict=True):
            torch.mm(p, q.T, out=mean)
        prefix = P if side is factors.left else Q
        for matrix, factor in zip(factors.matrices, side.factors, strict=True):
            self._warm.keep(prefix + matrix.name, factor)

    def sent_bytes(self, encoded: FactorBatch, received: FactorBatch) -> int:
        del received
        return encoded.side.flat.nbytes

    def _fix(self, factors: Factors, odd: bool) -> None:
        """Sets the factors that this step does not send to those of the step before."""
        fixed, prefix = (factors.right, Q) if odd else (factors.left, P)
        for matrix, place in zip(factors.matrices, fixed.factors, strict=True):
            place.copy_(self.warm_factor(prefix, matrix, place.device))
        fixed.orthonormalise()
