"""Cross entropy per word, and perplexity, its exponential."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, final

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import cross_entropy

from atomo.workloads.base import LOSS, Metric, Objective, Scorer
from atomo.workloads.language.windows import NO_WORD

__all__ = ["PERPLEXITY", "NextWord", "PerplexityScorer"]

PERPLEXITY: Final = Metric(
    "perplexity", "perplexity", "perplexity", higher_is_better=False, percent=False
)


@final
@dataclass(frozen=True)
class NextWord(Objective):
    """Mean cross entropy of the words of a batch, nats."""

    smoothing: float = 0.0
    """The share of each word that is spread over all words."""

    def loss(
        self, outputs: Float[Tensor, "b s v"], targets: Int64[Tensor, "b t"]
    ) -> Float[Tensor, ""]:
        scores, words = select_predicted(outputs, targets)
        return cross_entropy(scores, words, ignore_index=NO_WORD, label_smoothing=self.smoothing)

    def smoothed(self, share: float) -> Objective:
        return replace(self, smoothing=share)

    def right(self, outputs: Float[Tensor, "b s v"], targets: Int64[Tensor, "b t"]) -> Tensor:
        """Adds up, over windows, the share of the words that are the likeliest."""
        right = outputs[:, -targets.shape[1] :].argmax(2) == targets
        return (right.sum(1) / (targets != NO_WORD).sum(1)).sum()


@final
class PerplexityScorer(Scorer):
    """Perplexity, and the mean cross entropy, nats, over all words, each weighing the same."""

    def __init__(self) -> None:
        self._loss, self._words = 0.0, 0

    def add(self, outputs: Float[Tensor, "b s v"], targets: Int64[Tensor, "b t"]) -> None:
        scores, words = select_predicted(outputs, targets)
        losses = cross_entropy(scores, words, ignore_index=NO_WORD, reduction="none")
        self._loss += float(losses.double().sum())
        self._words += int((words != NO_WORD).sum())

    def values(self) -> Mapping[str, float]:
        loss = self._loss / self._words
        # Not math.exp, which raises an error where this is infinite.
        return {PERPLEXITY.key: float(torch.tensor(loss).double().exp()), LOSS.key: loss}


def select_predicted(
    outputs: Float[Tensor, "b s v"], targets: Int64[Tensor, "b t"]
) -> tuple[Float[Tensor, "n v"], Int64[Tensor, " n"]]:
    """Returns the scores of the words that are asked for, the last of each window, and
    these words.
    """
    return outputs[:, -targets.shape[1] :].flatten(0, 1), targets.flatten()
