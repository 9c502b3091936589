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

from collections.abc import Mapping
from typing import Any, ClassVar, Final, final

import torch
from jaxtyping import Float
from torch import Tensor

from atomo.codecs import Codec
from atomo.communicators.base import Finish, Reduction
from atomo.communicators.collective import Collective
from atomo.communicators.exchange import Compressor
from atomo.communicators.factors import Factors
from atomo.communicators.low_rank import MEMORIES, Held, LowRank, low_rank
from atomo.fusion import Bucket

__all__ = ["PowerSGD"]

NAME: Final = "PowerSGD"
Q: Final = "q/"  # what the names of factors in a state begin with


@final
class PowerSGD(Reduction[Held]):
    """Two sums a bucket and step."""

    memories: ClassVar[tuple[str, ...]] = MEMORIES

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
        """P of each matrix, of this rank alone."""
        held = self._low_rank.hold(bucket, flat, idle)
        left = held.factors.left
        for one, whole, p in zip(held.factors.matrices, held.wholes, left.factors, strict=True):
            q = self._low_rank.warm.factor(Q + one.name, one.n, one.rank, flat.device)
            torch.mm(whole, q, out=p)
        self._low_rank.dense(held, flat, left)
        return held

    def start(self, bucket: Bucket, encoded: Held, step: int) -> Finish:
        what = f"of bucket {bucket.number} of step {step}"
        return lambda out: self._finish(encoded, out, what)

    def _finish(self, held: Held, out: Float[Tensor, " n"], what: str) -> None:
        factors, left = held.factors, held.factors.left
        self._low_rank.sum(left.flat, f"P {what}")
        factors.pour(left.dense * self._share, out)
        left.orthonormalise()
        self._project(held)
        self._low_rank.sum(factors.right.low, f"Q {what}")
        factors.right.low.mul_(self._share)
        means = factors.matrices_in(out)
        sides = zip(factors.matrices, left.factors, factors.right.factors, means, strict=True)
        for one, p, q, mean in sides:
            torch.mm(p, q.T, out=mean)
            self._low_rank.warm.keep(Q + one.name, q)

    def _project(self, held: Held) -> None:
        """Q of each matrix, of this rank alone; the memory keeps what its projection leaves."""
        factors = held.factors
        for whole, p, q in zip(
            held.wholes, factors.left.factors, factors.right.factors, strict=True
        ):
            torch.mm(whole.T, p, out=q)
            whole.addmm_(p, q.T, alpha=-1)

    def bytes_of(self, held: Held, step: int) -> int:
        """How much of a bucket is summed in a step."""
        del step  # all are alike
        return held.factors.left.flat.nbytes + held.factors.right.low.nbytes

    def prepare(self, bucket: Bucket, device: torch.device) -> None:
        """Draws the factors of a bucket where there are none yet, so that the state has them."""
        for one in Factors(bucket, device).matrices:
            self._low_rank.warm.factor(Q + one.name, one.n, one.rank, device)

    def state_dict(self) -> dict[str, Tensor]:
        return self._low_rank.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self._low_rank.load_state_dict(state)
