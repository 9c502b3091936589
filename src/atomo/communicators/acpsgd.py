"""ACP-SGD: PowerSGD's two sums on alternate steps, so that a step has one.

Of each matrix M_w, a rank's gradient together with what it kept:

    odd steps:   Q = orthonormal(Q of the step before), P = mean of M_w Q
    even steps:  P = orthonormal(P of the step before), Q = mean of M_w^T P

The mean is P Q^T, and a rank keeps of M_w what its own factor leaves. Half the latency and about
half the bytes of PowerSGD, for a power iteration that takes two steps.

The fixed factor is a step old, so more of a gradient arrives late than with PowerSGD, and momentum
after the average repeats what arrives late: LeNet diverges where PowerSGD trains. So the default
with momentum is the memory that applies it before the factors.

Zhang, Zhang, Shi, Chu and Li, "Evaluation and Optimization of Gradient Compression for Distributed
Deep Learning", ICDCS 2023.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Final, final

import torch
from jaxtyping import Float
from torch import Tensor

from atomo.codecs import Codec
from atomo.communicators.base import Finish, Reduction
from atomo.communicators.collective import Collective
from atomo.communicators.exchange import Compressor
from atomo.communicators.factors import Factors, Side
from atomo.communicators.low_rank import MEMORIES, Held, LowRank, low_rank
from atomo.fusion import Bucket
from atomo.memory import MomentumCorrection

__all__ = ["ACPSGD"]

NAME: Final = "ACPSGD"
P, Q = "p/", "q/"  # what the names of factors in a state begin with


@final
class ACPSGD(Reduction[Held]):
    """One sum a bucket and step."""

    memories: ClassVar[tuple[str, ...]] = MEMORIES
    momentum_memory: ClassVar[str | None] = MomentumCorrection.id

    def __init__(self, collective: Collective, compressor: Compressor) -> None:
        self._low_rank, self._share = LowRank(collective, compressor), 1 / collective.size

    @staticmethod
    def fitted(codec: Codec[Any]) -> Codec[Any]:
        return low_rank(codec, NAME)

    def encode(
        self,
        bucket: Bucket,
        flat: Float[Tensor, " n"],
        step: int,
        idle: frozenset[str] = frozenset(),
    ) -> Held:
        """The factor of each matrix that this step sends, of this rank alone."""
        held = self._low_rank.hold(bucket, flat, idle)
        factors, odd = held.factors, step % 2 == 1
        self._fix(factors, odd)
        for whole, p, q in zip(
            held.wholes, factors.left.factors, factors.right.factors, strict=True
        ):
            torch.mm(whole, q, out=p) if odd else torch.mm(whole.T, p, out=q)
            whole.addmm_(p, q.T, alpha=-1)
        self._low_rank.dense(held, flat, sent(factors, odd))
        return held

    def start(self, bucket: Bucket, encoded: Held, step: int) -> Finish:
        what = f"the factors of bucket {bucket.number} of step {step}"
        return lambda out: self._finish(encoded.factors, out, step % 2 == 1, what)

    def _fix(self, factors: Factors, odd: bool) -> None:
        """Has the factors that this step does not send be those of the step before."""
        fixed, prefix = (factors.right, Q) if odd else (factors.left, P)
        for one, place in zip(factors.matrices, fixed.factors, strict=True):
            rows, rank = place.shape
            place.copy_(self._low_rank.warm.factor(prefix + one.name, rows, rank, place.device))
        fixed.orthonormalise()

    def _finish(self, factors: Factors, out: Float[Tensor, " n"], odd: bool, what: str) -> None:
        side = sent(factors, odd)
        self._low_rank.sum(side.flat, what)
        side.flat.mul_(self._share)
        factors.pour(side.dense, out)
        places = zip(factors.left.factors, factors.right.factors, strict=True)
        for (p, q), mean in zip(places, factors.matrices_in(out), strict=True):
            torch.mm(p, q.T, out=mean)
        for one, factor in zip(factors.matrices, side.factors, strict=True):
            self._low_rank.warm.keep((P if odd else Q) + one.name, factor)

    def bytes_of(self, held: Held, step: int) -> int:
        """How much of a bucket is summed in a step."""
        return sent(held.factors, step % 2 == 1).flat.nbytes

    def prepare(self, bucket: Bucket, device: torch.device) -> None:
        """Draws the factors of a bucket where there are none yet, so that the state has them."""
        for one in Factors(bucket, device).matrices:
            self._low_rank.warm.factor(P + one.name, one.m, one.rank, device)
            self._low_rank.warm.factor(Q + one.name, one.n, one.rank, device)

    def state_dict(self) -> dict[str, Tensor]:
        return self._low_rank.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self._low_rank.load_state_dict(state)


def sent(factors: Factors, odd: bool) -> Side:
    """The factors that a step sends."""
    return factors.left if odd else factors.right
