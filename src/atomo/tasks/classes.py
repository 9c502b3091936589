"""One class a sample: cross entropy, and the shares of samples whose class is the likeliest."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import cross_entropy

from atomo.tasks.base import LOSS, Metric, Objective, Scorer

__all__ = ["TOP1", "TOP5", "CrossEntropy", "TopScorer"]

TOP1 = Metric("top1", "top-1", "accuracy")
TOP5 = Metric("top5", "top-5")


@final
@dataclass(frozen=True)
class CrossEntropy(Objective):
    """Mean cross entropy of logits, nats."""

    smoothing: float = 0.0
    """The share of each label that is spread over all classes."""

    def loss(
        self, outputs: Float[Tensor, "b c"], targets: Int64[Tensor, " b"]
    ) -> Float[Tensor, ""]:
        return cross_entropy(outputs, targets, label_smoothing=self.smoothing)

    def smoothed(self, share: float) -> Objective:
        return replace(self, smoothing=share)

    def right(self, outputs: Float[Tensor, "b c"], targets: Int64[Tensor, " b"]) -> Tensor:
        """Samples whose likeliest class is the right one."""
        return (outputs.argmax(1) == targets).sum()


@final
class TopScorer(Scorer):
    """Top-1 and top-5, fractions of the samples, and the mean cross entropy, nats."""

    def __init__(self) -> None:
        self._sums: list[Tensor] = []
        self._samples = 0

    def add(self, outputs: Float[Tensor, "b c"], targets: Int64[Tensor, " b"]) -> None:
        best = outputs.topk(min(5, outputs.shape[1])).indices
        right = best == targets[:, None]
        loss = cross_entropy(outputs, targets, reduction="none").double().sum()
        sums = [right[:, 0].sum().double(), right.sum().double(), loss]
        self._sums.append(torch.stack(sums).cpu())
        self._samples += len(targets)

    def values(self) -> Mapping[str, float]:
        # Sums of batches, divided once: the last batch is smaller and must weigh less.
        means = torch.stack(self._sums).sum(0) / self._samples
        keys = TOP1.key, TOP5.key, LOSS.key
        return dict(zip(keys, means.tolist(), strict=True))
