"""Precision of the first few of very many labels.

P@k: the share of the k likeliest labels that are right. PSP@k: the same, each label weighed by how
rarely it would be seen where it applies, over the most that could be had (Jain, Prabhu and Varma,
"Extreme Multi-label Loss Functions for Recommendation, Tagging, Ranking & Other Missing Label
Applications", KDD 2016).
"""

import math
from collections.abc import Mapping
from typing import Final, final

import torch
from jaxtyping import Float, Float64
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy

from atomo.workloads.base import LOSS, Metric, Objective, Scorer

__all__ = ["LABEL_METRICS", "LabelObjective", "LabelPrecisionScorer", "inverse_propensities"]

AT: Final = (1, 3, 5)
LABEL_METRICS: Final = (
    *(Metric(f"p{k}", f"P@{k}", f"P@{k}") for k in AT),
    *(Metric(f"psp{k}", f"PSP@{k}") for k in AT),
)


def inverse_propensities(
    counts: Float64[Tensor, " l"], samples: int, a: float, b: float
) -> Float64[Tensor, " l"]:
    """Computes 1 / p of each label: 1 + C exp(-A log(N_l + B)), with C = (log N - 1) (B + 1)^A.

    Args:
        counts: training samples that have it, N_l.
        samples: of training, N.
        a: A of the data set.
        b: B of the data set.
    """
    c = max(0.0, math.log(samples) - 1) * (b + 1) ** a  # without meaning for one or two samples
    inverse: Tensor = 1 + c * (counts + b) ** -a
    return inverse


@final
class LabelObjective(Objective):
    """Binary cross entropy, nats: the sum over the labels, the mean over the samples.

    The mean over both is the same, divided by the number of labels; steps of Adam are alike.
    """

    def loss(
        self, outputs: Float[Tensor, "b l"], targets: Float[Tensor, "b l"]
    ) -> Float[Tensor, ""]:
        return cross_entropy(outputs, targets, reduction="sum") / len(targets)

    def right(self, outputs: Float[Tensor, "b l"], targets: Float[Tensor, "b l"]) -> Tensor:
        """Counts the samples with a correct label as the likeliest."""
        return targets.gather(1, outputs.argmax(1, keepdim=True)).sum()


@final
class LabelPrecisionScorer(Scorer):
    """P@k and PSP@k at 1, 3 and 5, and the loss of `LabelObjective`."""

    def __init__(self, inverse: Float64[Tensor, " l"]) -> None:
        self._inverse = inverse
        self._k = min(max(AT), len(inverse))
        # Over all samples: hits at each place, their weights, and the most weight to be had.
        self._hits, self._weights, self._best = torch.zeros(3, self._k, dtype=torch.float64)
        self._loss, self._samples = 0.0, 0

    def add(self, outputs: Float[Tensor, "b l"], targets: Float[Tensor, "b l"]) -> None:
        self._loss += float(LabelObjective().loss(outputs, targets).double()) * len(targets)
        self._samples += len(targets)
        places = outputs.topk(self._k).indices
        hits = targets.gather(1, places).double().cpu()
        self._hits += hits.sum(0)
        self._weights += (hits * self._inverse[places.cpu()]).sum(0)
        self._best += (targets.cpu() * self._inverse).topk(self._k).values.sum(0)

    def values(self) -> Mapping[str, float]:
        hits, weights, best = (sums.cumsum(0) for sums in (self._hits, self._weights, self._best))
        last = {k: min(k, self._k) - 1 for k in AT}
        precision = {f"p{k}": float(hits[i]) / k / self._samples for k, i in last.items()}
        shares = weights / best.clamp_min(1e-300)  # 0 where no sample has a label
        scored = {f"psp{k}": float(shares[i]) for k, i in last.items()}
        return {**precision, **scored, LOSS.key: self._loss / self._samples}
