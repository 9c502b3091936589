"""Images of one class each, with the data sets and networks of this package."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, final

import torch
from jaxtyping import Int64

from atomo.core.names import resolve
from atomo.workloads.base import Batch, Metric, Samples, Task, Workload
from atomo.workloads.classes import TOP1, TOP5, CrossEntropy, TopScorer
from atomo.workloads.datasets import DATASETS, Split, load_dataset
from atomo.workloads.datasets.photographs.preparation import PREPARATIONS, prepare_images
from atomo.workloads.models import CIFAR_EXAMPLES, MODELS, build_model, network_named

__all__ = ["Images"]


@final
@dataclass(frozen=True, eq=False)
class ImageSamples(Samples):
    """A split of images, and the class of each."""

    split: Split

    def __len__(self) -> int:
        return len(self.split)

    def batch(self, indices: Int64[torch.Tensor, " b"], seed: int | None = None) -> Batch:
        images, labels = self.split.batch(indices, seed)
        return Batch((images,), labels)

    def on(self, device: torch.device) -> Samples:
        there = self.split.on(device)
        return self if there is self.split else ImageSamples(there)


@final
@dataclass(frozen=True)
class Images(Task):
    """Classification of images."""

    augment: str = ""
    """The published preparation of photographs: `photos`, `vit` or `food`; empty: the data set's
    own.
    """

    id: ClassVar[str] = "images"
    samples: ClassVar[str] = "images"
    metrics: ClassVar[tuple[Metric, ...]] = (TOP1, TOP5)
    network: ClassVar[str] = "LeNet"
    dataset: ClassVar[str] = "Digits"

    def __post_init__(self) -> None:
        if self.augment:
            resolve("augmentation", self.augment, PREPARATIONS)

    @classmethod
    def datasets(cls) -> tuple[str, ...]:
        return tuple(DATASETS)

    @classmethod
    def networks(cls) -> tuple[str, ...]:
        return (*MODELS, *CIFAR_EXAMPLES)

    def network_named(self, name: str) -> str:
        return network_named(name)

    def open(self, dataset: str, data_dir: Path, image_size: int | None = None) -> Workload:
        if self.augment:
            data = prepare_images(load_dataset(dataset, data_dir), self.augment, image_size)
        else:
            data = load_dataset(dataset, data_dir, image_size)
        return Workload(
            ImageSamples(data.train),
            ImageSamples(data.test),
            lambda name: build_model(name, data.input_shape, data.classes),
            CrossEntropy(),
            TopScorer,
        )
