"""Classification with one class for each sample: cross entropy, and top-k accuracy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float, Int64

from atomo.workloads.base import LOSS, Metric, Objective, Scorer

__all__ = ["ACCURACY", "F1", "TOP1", "TOP5", "CrossEntropy", "FScorer", "TopScorer"]

TOP1 = Metric("top1", "top-1", "accuracy")
TOP5 = Metric("top5", "top-5")
ACCURACY = Metric("accuracy", "accuracy", "accuracy")
F1 = Metric("f1", "F1")


@final
@dataclass(frozen=True)
class CrossEntropy(Objective):
    """Mean cross entropy of logits, nats."""

    smoothing: float = 0.0
    """The share of each label that is spread over all classes."""

    def loss(
        self, outputs: Float[torch.Tensor, "b c"], targets: Int64[torch.Tensor, " b"]
    ) -> Float[torch.Tensor, ""]:
        return torch.nn.functional.cross_entropy(outputs, targets, label_smoothing=self.smoothing)

    def smoothed(self, share: float) -> Objective:
        return replace(self, smoothing=share)

    def right(
        self, outputs: Float[torch.Tensor, "b c"], targets: Int64[torch.Tensor, " b"]
    ) -> torch.Tensor:
        """Counts the samples with the correct class as the likeliest."""
        return (outputs.argmax(1) == targets).sum()


@final
class TopScorer(Scorer):
    """Top-1 and top-5, fractions of the samples, and the mean cross entropy, nats."""

    def __init__(self) -> None:
        self._sums: list[torch.Tensor] = []
        self._samples = 0

    def add(self, outputs: Float[torch.Tensor, "b c"], targets: Int64[torch.Tensor, " b"]) -> None:
        best = outputs.topk(min(5, outputs.shape[1])).indices
        right = best == targets[:, None]
        loss = torch.nn.functional.cross_entropy(outputs, targets, reduction="none").double().sum()
        sums = [right[:, 0].sum().double(), right.sum().double(), loss]
        self._sums.append(torch.stack(sums).cpu())
        self._samples += len(targets)

    def values(self) -> Mapping[str, float]:
        # Sums of batches, divided once: the last batch is smaller and must weigh less.
        means = torch.stack(self._sums).sum(0) / self._samples
        keys = TOP1.key, TOP5.key, LOSS.key
        return dict(zip(keys, means.tolist(), strict=True))


@final
class FScorer(Scorer):
    """Accuracy, the F1 of the classes, and the mean cross entropy, nats.

    F1 is the plain mean over the classes (macro), each the harmonic mean of its precision and its
    recall; a class without samples and predictions does not count, as in scikit-learn.
    """

    def __init__(self, classes: int) -> None:
        self._counts = torch.zeros(
            classes, classes, dtype=torch.float64
        )  # true class by predicted class
        self._loss = 0.0

    def add(self, outputs: Float[torch.Tensor, "b c"], targets: Int64[torch.Tensor, " b"]) -> None:
        pairs = targets * len(self._counts) + outputs.argmax(1)
        counts = pairs.cpu().bincount(minlength=self._counts.numel())
        self._counts += counts.view_as(self._counts)
        self._loss += float(
            torch.nn.functional.cross_entropy(outputs, targets, reduction="none").double().sum()
        )

    def values(self) -> Mapping[str, float]:
        right, samples = self._counts.diagonal(), float(self._counts.sum())
        named = self._counts.sum(0) + self._counts.sum(
            1
        )  # samples of the class, and predictions of it
        f1 = (2 * right / named)[named > 0]
        accuracy = float(right.sum()) / samples
        return {ACCURACY.key: accuracy, F1.key: float(f1.mean()), LOSS.key: self._loss / samples}
