"""The contract of a task: batches, the network that they need, its loss, and its metrics.

The loops of `training` know tasks by this contract alone.

A `Task` is an immutable value, its fields its settings: `images`, `labels(hidden=4096)`. Opened on
a data set it is a `Workload`, which every rank and the evaluator open alike: equal files give equal
batches, an equal vocabulary and, after the same `torch.manual_seed`, equal first weights.

- **Samples** are numbered from 0. A split keeps no position, and all its random numbers come from
  the seed of the call, so a sample does not depend on how workers divide a batch. The task names
  its samples ("images", "sentences"); steps, epochs and speeds count them.
- **A batch** has the arguments of the network, tensors in their order, and targets.
- **An objective** computes the loss to differentiate, the mean over a batch, and counts the
  correct samples, for the line of progress.
- **A scorer** adds up batches of the test split, and gives the metrics of a checkpoint and its
  loss. Its sums are in double precision, so that the size of the batches is not seen in them.
- **Metrics** say which way is better. The first is the task's headline.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Final, final

import torch
from jaxtyping import Float, Int64

from atomo.core.devices import to_device
from atomo.core.names import resolve
from atomo.errors import ConfigError

__all__ = [
    "LOSS",
    "STORED",
    "Batch",
    "Metric",
    "Objective",
    "Samples",
    "Scorer",
    "Task",
    "Workload",
]

STORED: Final[Mapping[str, bool]] = MappingProxyType({"stored": True})
"""`field(default="", metadata=STORED)` marks a task's field that is no setting: it comes from the
training split, such as an alphabet, and a checkpoint stores it. A task with this field opens any
data as that training did."""


@final
@dataclass(frozen=True)
class Metric:
    """A measure of the quality of a checkpoint."""

    key: str
    """The name in evaluations.jsonl and TensorBoard."""
    shown: str
    """The name in lines for people."""
    title: str = ""
    """The name in the closing table, where the metric is the headline."""
    higher_is_better: bool = True
    percent: bool = True
    """True if the value is a fraction, shown as a percentage."""

    def text(self, value: float) -> str:
        """Returns a value for people."""
        return f"{value:.2%}" if self.percent else f"{value:.4f}"

    def better(self, value: float, other: float) -> bool:
        """True if `value` is better than `other`; any number is better than none (NaN)."""
        if math.isnan(other):
            return not math.isnan(value)
        return value > other if self.higher_is_better else value < other


LOSS = Metric("loss", "loss", "loss", higher_is_better=False, percent=False)


@final
@dataclass(frozen=True, eq=False)
class Batch:
    """Some samples."""

    inputs: tuple[torch.Tensor, ...]
    """The arguments of the network."""
    targets: torch.Tensor
    """The expected outputs; the first dimension counts the samples."""

    def __len__(self) -> int:
        return len(self.targets)

    def to(self, device: torch.device | str) -> Batch:
        """Returns the batch on a device."""
        target = torch.device(device)
        inputs = tuple(to_device(tensor, target) for tensor in self.inputs)
        return Batch(inputs, to_device(self.targets, target))


class Samples(ABC):
    """One split of a data set. Abstract; subclasses are final."""

    @abstractmethod
    def __len__(self) -> int:
        """Counts the samples."""

    @abstractmethod
    def batch(self, indices: Int64[torch.Tensor, " b"], seed: int | None = None) -> Batch:
        """Returns the samples at `indices`.

        Args:
            indices: at least one, each in [0, len(self)), in any order; repeats are allowed.
            seed: augments each sample, as a pure function of the seed and the index; None: no
                augmentation.

        Raises:
            DataError: a sample cannot be read.
        """

    def on(self, device: torch.device) -> Samples:
        """Returns samples that make their batches on a device, if possible; else `self`."""
        del device
        return self


class Objective(ABC):
    """A function that training minimises. Abstract; subclasses are final."""

    @abstractmethod
    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> Float[torch.Tensor, ""]:
        """Returns the mean loss of a batch.

        Args:
            outputs: of the network.
            targets: of the batch.
        """

    def smoothed(self, share: float) -> Objective:
        """Returns the same objective with this share of each label spread over all classes.

        Raises:
            ConfigError: the targets are no classes.
        """
        raise ConfigError(
            f"--label-smoothing {share:g}: this task's targets are no classes; leave it out"
        )

    @abstractmethod
    def right(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Counts the samples of the batch that are right, a scalar: whole samples, or parts of
        them.
        """


class Scorer(ABC):
    """Accumulator of a checkpoint's metrics, new for each. Abstract; subclasses are final."""

    @abstractmethod
    def add(self, outputs: Any, targets: torch.Tensor) -> None:
        """Adds a batch of the test split.

        Args:
            outputs: of the network in evaluation: a tensor of scores, or another type.
            targets: of the batch.
        """

    @abstractmethod
    def values(self) -> Mapping[str, float]:
        """Returns the task's metrics and the loss over all added batches, by their keys.

        The headline is always there; other metrics may be missing for some networks and data.
        """


@final
@dataclass(frozen=True, eq=False)
class Workload:
    """A task on a data set that has been found and checked."""

    train: Samples
    test: Samples
    build: Callable[[str], torch.nn.Module]
    """Builds the network of this name; its weights come from torch's global generator. Raises
    ConfigError if there is no such network, or the network does not fit the data."""
    objective: Objective
    scorer: Callable[[], Scorer]
    eval_batch_size: int = 2**31
    """The maximum batch of the evaluator, samples; smaller where a sample has many scores."""
    stored_fields: Mapping[str, str] = field(default_factory=dict)
    """Values of the task's fields that are marked `STORED`; of at most 8000 characters each."""


@dataclass(frozen=True)
class Task(ABC):
    """A kind of training. Abstract; subclasses are final dataclasses, their fields
    their settings.
    """

    id: ClassVar[str]
    samples: ClassVar[str]
    """The word for samples, in the plural."""
    metrics: ClassVar[tuple[Metric, ...]]
    """The headline first; the loss is not among them."""
    network: ClassVar[str]
    """The default network."""
    dataset: ClassVar[str]
    """The default data set."""
    scores_training: ClassVar[bool] = True
    """True if the scorer accepts the outputs of the network in training, too."""

    @classmethod
    def datasets(cls) -> tuple[str, ...]:
        """Returns the data sets, by name; where there is only one, the default."""
        return (cls.dataset,)

    @classmethod
    def networks(cls) -> tuple[str, ...]:
        """Returns the networks, by name; where there is only one, the default."""
        return (cls.network,)

    @abstractmethod
    def open(self, dataset: str, data_dir: Path, image_size: int | None = None) -> Workload:
        """Reads a data set that is on disk; nothing is fetched.

        Args:
            dataset: one of `datasets()`, in any case, with or without `-` and `_`.
            data_dir: the folder that holds the data sets.
            image_size: pixels a side, where samples are images of any size.

        Raises:
            ConfigError: there is no such data set, or it has no images of this size.
            DataError: the data set is missing or damaged.
        """

    def network_named(self, name: str) -> str:
        """Returns the spelling of a network's name that the settings keep.

        Raises:
            ConfigError: there is no such network; the message offers the nearest.
        """
        return resolve("network", name, self.networks())

    def dataset_named(self, name: str) -> str:
        """Returns the spelling of a data set's name that the settings keep.

        Raises:
            ConfigError: this task has no such data set; the message offers the nearest.
        """
        return resolve("data set", name, self.datasets())

    def no_size(self, image_size: int | None) -> None:
        """Raises ConfigError where an image size is asked for, and there are no images."""
        if image_size:
            raise ConfigError(
                f"--image-size {image_size}: --task {self.id} has {self.samples}, which have no "
                "pixels; leave it out"
            )
