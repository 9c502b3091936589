"""Extreme multi-label classification: any number of labels a sample, out of up to millions."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, final

import torch
from jaxtyping import Float64, Int64
from torch import Tensor
from torch.nn import Module

from atomo.errors import ConfigError
from atomo.workloads.base import Batch, Metric, Samples, Task, Workload
from atomo.workloads.labels.mlp import sparse_mlp
from atomo.workloads.labels.precision import (
    LABEL_METRICS,
    LabelObjective,
    LabelPrecisionScorer,
    inverse_propensities,
)
from atomo.workloads.labels.repository import LabelTable
from atomo.workloads.labels.sets import SETS, read_set

__all__ = ["Labels"]

BY_NAME = {label_set.name: label_set for label_set in SETS}


@final
@dataclass(frozen=True, eq=False)
class LabelSamples(Samples):
    """A split, a line of its file a sample."""

    table: LabelTable

    def __len__(self) -> int:
        return len(self.table.bags)

    def batch(self, indices: Int64[Tensor, " b"], seed: int | None = None) -> Batch:
        """Returns the features, the first one of each sample, their values, and a 1 for
        each label.
        """
        bags = self.table.bags.chosen(indices)
        rows = torch.arange(len(indices)).repeat_interleave(bags.label_starts.diff())
        targets = torch.zeros(len(indices), self.table.labels)
        targets[rows, bags.labels] = 1
        return Batch((bags.features, bags.feature_starts, bags.values), targets)


@final
@dataclass(frozen=True)
class Labels(Task):
    """Classification with very many labels. Samples are sparse, and the network one hidden layer.

    Medini et al., "Extreme Classification in Log Memory using Count-Min Sketch", NeurIPS 2019, use
    the same network; DRAGONN compresses its gradients.
    """

    hidden: int = 4096
    """Units between features and labels."""

    id: ClassVar[str] = "labels"
    samples: ClassVar[str] = "samples"
    metrics: ClassVar[tuple[Metric, ...]] = LABEL_METRICS
    network: ClassVar[str] = "MLP"
    dataset: ClassVar[str] = "eurlex4k"

    def __post_init__(self) -> None:
        if not 1 <= self.hidden <= 1_000_000:
            raise ConfigError(f"labels: hidden must be 1 to 1000000, got {self.hidden}")

    @classmethod
    def datasets(cls) -> tuple[str, ...]:
        return tuple(BY_NAME)

    def open(self, dataset: str, data_dir: Path, image_size: int | None = None) -> Workload:
        self.no_size(image_size)
        chosen = BY_NAME[self.dataset_named(dataset)]
        train, test = read_set(chosen, data_dir)
        counts = label_counts(train)
        inverse = inverse_propensities(counts, len(train.bags), chosen.a, chosen.b)
        return Workload(
            LabelSamples(train),
            LabelSamples(test),
            lambda name: self._build(name, train),
            LabelObjective(),
            lambda: LabelPrecisionScorer(inverse),
        )

    def _build(self, name: str, train: LabelTable) -> Module:
        self.network_named(name)
        samples = len(train.bags)
        square = float(train.bags.values.double().square().sum()) / samples
        rates = (label_counts(train) / samples).float()
        return sparse_mlp(train.features, self.hidden, square, rates)


def label_counts(table: LabelTable) -> Float64[Tensor, " l"]:
    """Counts the samples of each label."""
    return table.bags.labels.bincount(minlength=table.labels).double()
