"""How good a checkpoint is: top-1, top-5 and the mean loss on the test images."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import Module
from torch.nn.functional import cross_entropy

from atomo.data import Split, load_dataset
from atomo.errors import CheckpointError, ConfigError
from atomo.models import build_model
from atomo.names import fold
from atomo.training.checkpoint import Snapshot
from atomo.training.contents import load_model
from atomo.training.manifest import Setting

__all__ = ["Evaluation", "Subject", "agreed", "build_subject", "score"]


@dataclass(frozen=True)
class Evaluation:
    """How well one checkpoint does on the test images."""

    step: int
    top1: float  # fraction of the images whose label has the largest logit
    top5: float  # fraction of the images whose label is among the five largest logits
    loss: float  # mean cross entropy, nats; NaN or infinite once the training has diverged
    images: int


@dataclass(frozen=True)
class Subject:
    """What the checkpoints of one configuration are evaluated with."""

    network: Module
    test: Split
    device: str


def agreed(name: str, given: Setting | None, config: Mapping[str, Setting]) -> Setting | None:
    """The value of a setting that the caller, the checkpoint, both or neither may give.

    Raises:
        ConfigError: both do, and they differ; case, `-` and `_` make no difference.
    """
    trained = config.get(name)
    if given is None or trained is None:
        return trained if given is None else given
    if fold(str(given)) != fold(str(trained)):
        raise ConfigError(
            f"{name} {given!r} contradicts the checkpoint, which was trained with {trained!r};"
            f" leave {name} out to evaluate what was trained"
        )
    return given


def build_subject(
    network: Setting | None,
    dataset: Setting | None,
    image_size: Setting | None,
    data_dir: Path,
    device: str,
) -> Subject:
    """Builds the network, with any weights, and loads the data set. An `image_size` of 0 is None.

    Raises:
        ConfigError: there is no such network or data set, or none is named at all.
        DataError: the data set is not in `data_dir`.
    """
    if not isinstance(network, str) or not isinstance(dataset, str):
        raise ConfigError(
            f"network {network!r}, dataset {dataset!r}: the checkpoint does not name both; do it"
        )
    if image_size is not None and not isinstance(image_size, int):
        raise ConfigError(f"image_size {image_size!r} in the checkpoint is not a number of pixels")
    data = load_dataset(dataset, data_dir, image_size or None)
    module = build_model(network, data.input_shape, data.classes).to(device).eval()
    return Subject(module, data.test, device)


def score(snapshot: Snapshot, subject: Subject, batch_size: int) -> Evaluation:
    """Evaluates the weights of `snapshot`, with its own batch-norm statistics.

    Raises:
        CheckpointError: these are not the weights of this network.
    """
    try:
        load_model(subject.network, snapshot.model)
    except CheckpointError as error:
        raise CheckpointError(f"step {snapshot.step}: {error}") from error
    images = len(subject.test)
    # Sums of batches, divided once: the last batch is smaller and must weigh less.
    with torch.inference_mode():
        batches = [tally(subject, chunk) for chunk in torch.split(torch.arange(images), batch_size)]
    top1, top5, loss = (torch.stack(batches).sum(0) / images).tolist()
    return Evaluation(snapshot.step, top1, top5, loss, images)


def tally(subject: Subject, indices: Int64[Tensor, " b"]) -> Float[Tensor, " 3"]:
    """Over some images: how many are right, how many are in the top five, and the summed loss."""
    images, labels = subject.test.batch(indices)
    labels = labels.to(subject.device)
    logits = subject.network(images.to(subject.device))
    best = logits.topk(min(5, logits.shape[1])).indices
    right = best == labels[:, None]
    # Added up in double precision, so that the batch size is not seen in the mean.
    loss = cross_entropy(logits, labels, reduction="none").double().sum()
    return torch.stack([right[:, 0].sum().double(), right.sum().double(), loss]).cpu()
