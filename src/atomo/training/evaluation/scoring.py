"""Scores of a checkpoint: the metrics of its task, and the mean loss, on the test split."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor
from torch.nn import Module

from atomo.core.arguments import flag
from atomo.core.names import fold
from atomo.errors import CheckpointError, ConfigError
from atomo.training.checkpoints.checkpoint import Snapshot
from atomo.training.checkpoints.manifest import SettingValue
from atomo.training.checkpoints.schema import load_model
from atomo.training.evaluation.evaluation import AVERAGED, Evaluation
from atomo.training.optim.weight_average import averaged
from atomo.workloads import Task, Workload, spec_of

__all__ = ["Evaluation", "Subject", "agreed", "build_subject", "score"]


@dataclass(frozen=True)
class Subject:
    """The task, network and data that evaluate the checkpoints of one configuration."""

    network: Module
    task: Task
    workload: Workload
    device: str


def agreed(
    name: str, setting: SettingValue | None, config: Mapping[str, SettingValue]
) -> SettingValue | None:
    """Returns the value of a setting, from the caller or from the checkpoint; None if neither has
    it.

    Raises:
        ConfigError: both have it, and they differ; case, `-` and `_` make no difference.
    """
    trained = config.get(name)
    if setting is None or trained is None:
        return trained if setting is None else setting
    if fold(str(setting)) != fold(str(trained)):
        raise ConfigError(
            f"{flag(name)} {setting} contradicts the checkpoint, which was trained with {trained}; "
            "leave it out to use the checkpoint's"
        )
    return setting


def build_subject(
    task: Task,
    network: SettingValue | None,
    dataset: SettingValue | None,
    image_size: SettingValue | None,
    data_dir: Path,
    device: str,
) -> Subject:
    """Builds the network, without trained weights, and loads the data set.

    An `image_size` of 0 means the default.

    Raises:
        ConfigError: the network or the data set is unknown, or is not named.
        DataError: the data set is not in `data_dir`.
    """
    if not isinstance(network, str) or not isinstance(dataset, str):
        raise ConfigError(
            f"the checkpoint names network {network!r} and dataset {dataset!r}; give --network and "
            "--dataset, both of them"
        )
    if image_size is not None and not isinstance(image_size, int):
        raise ConfigError(f"image_size {image_size!r} in the checkpoint is not a number of pixels")
    workload = task.open(dataset, data_dir, image_size or None)
    return Subject(workload.build(network).to(device).eval(), task, workload, device)


def score(snapshot: Snapshot, subject: Subject, batch_size: int) -> Evaluation:
    """Evaluates the weights of `snapshot`, and their average if it has one, each with its own
    batch-norm statistics.

    Raises:
        CheckpointError: the weights are those of another network.
    """
    values = dict(tested(snapshot.step, snapshot.model, subject, batch_size))
    if average := averaged(snapshot.model, snapshot.optimizer):
        averaged_values = tested(snapshot.step, average, subject, batch_size)
        values |= {AVERAGED + key: value for key, value in averaged_values.items()}
    return Evaluation(snapshot.step, values, len(subject.workload.test), spec_of(subject.task))


def tested(
    step: int, model: Mapping[str, Tensor], subject: Subject, batch_size: int
) -> Mapping[str, float]:
    """Returns the metrics and the loss of some weights."""
    try:
        load_model(subject.network, model)
    except CheckpointError as error:
        raise CheckpointError(f"step {step}: {error}") from error
    samples, scorer = torch.arange(len(subject.workload.test)), subject.workload.scorer()
    at_once = min(batch_size, subject.workload.eval_batch_size)
    with torch.inference_mode():
        while len(samples):
            try:
                outputs, targets = passed(subject, samples[:at_once])
            except torch.OutOfMemoryError:  # a GPU has workers beside the evaluator
                if at_once == 1:
                    raise
                at_once = min(at_once, len(samples)) // 2 or 1
                continue
            scorer.add(outputs, targets)
            samples = samples[at_once:]
    return scorer.values()


def passed(subject: Subject, indices: Int64[Tensor, " b"]) -> tuple[Any, Tensor]:
    """Runs a network on samples; returns its outputs and the targets, for the task's scorer."""
    batch = subject.workload.test.batch(indices).to(subject.device)
    return subject.network(*batch.inputs), batch.targets
