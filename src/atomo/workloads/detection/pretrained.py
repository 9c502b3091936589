"""The network that reads the image, with weights of a classifier that was trained before."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import Module

from atomo.core.safe_read import open_plain
from atomo.errors import ConfigError, DataError
from atomo.workloads.detection.norms import freeze
from atomo.workloads.models.pretrained.tensor_files import READ_ERRORS

__all__ = ["backbone_stages", "load_body", "train_last"]

STEM: Final = ("conv1", "bn1")  # of a residual network
FEATURES: Final = "features."  # before the names of MobileNet's
COUNTER: Final = "num_batches_tracked"  # of batch norms; frozen norms have none


def load_body(body: Module, path: Path) -> None:
    """Gives the body of a detector's backbone the weights of torchvision's classifier.

    Args:
        body: the classifier without the layers after its last features.
        path: the classifier's state dict as safetensors; its last layers are not read.

    Raises:
        ConfigError: a tensor is missing or has another shape; the message names it, and both.
        DataError: the file cannot be read, or holds NaN or infinity.
    """
    weights = {name.removeprefix(FEATURES): tensor for name, tensor in read(path).items()}
    with torch.no_grad():
        for name, own in body.state_dict().items():
            if not name.endswith(COUNTER):
                own.copy_(fitting_tensor(path, name, weights.get(name), own))


def read(path: Path) -> Mapping[str, Tensor]:
    try:
        with open_plain(path, linked=True):  # a pipe would be waited for
            return load_file(path)
    except OSError as error:
        raise DataError(f"detection(backbone=...): cannot read {path}: {error}") from error
    except READ_ERRORS as error:
        raise DataError(
            f"detection(backbone=...): {path} is no file of safetensors ({error}); write the state "
            "dict of torchvision's classifier with safetensors.torch.save_file"
        ) from error


def fitting_tensor(path: Path, name: str, tensor: Tensor | None, own: Tensor) -> Tensor:
    """Returns a tensor of the file if it fits the network."""
    if tensor is None:
        raise ConfigError(
            f"{path} has no tensor {name!r} of {tuple(own.shape)}; it must be the state dict of the"
            " classifier that --network is named after"
        )
    if tensor.shape != own.shape:
        raise ConfigError(
            f"{path}: {name!r} is {tuple(tensor.shape)}, and {tuple(own.shape)} in --network"
        )
    if not tensor.isfinite().all():
        raise DataError(f"{path}: {name!r} holds NaN or infinity")
    return tensor


def train_last(body: Any, layers: int) -> None:
    """Makes all stages but the last `layers` constants.

    Raises:
        ConfigError: there are fewer stages.
    """
    stages = backbone_stages(body)
    if layers > len(stages):
        raise ConfigError(
            f"detection(trainable_layers={layers}): the backbone has {len(stages)}; at most as many"
        )
    for part in stages[: len(stages) - layers]:
        for module in part:
            freeze(module)


def backbone_stages(body: Any) -> list[Sequence[Module]]:
    """Returns the parts of a backbone that torchvision counts as its layers, the first
    one first.
    """
    children = dict(body.named_children())
    if STEM[0] in children:
        stem = [children[name] for name in STEM]
        return [stem, *([children[f"layer{number}"]] for number in (1, 2, 3, 4))]
    parts = list(children.values())
    # Where MobileNet halves the image.
    marks = [place for place, part in enumerate(parts) if getattr(part, "_is_cn", False)]
    begins = [0, *marks, len(parts) - 1]
    return [parts[a:b] for a, b in zip(begins, [*begins[1:], len(parts)], strict=True)]
