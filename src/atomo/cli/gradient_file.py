"""Files of named tensors: gradients, dumped by `--dump-every` or by other programs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from atomo.errors import ConfigError, DataError
from atomo.workloads.models.pretrained.npz import read_arrays
from atomo.workloads.models.pretrained.tensor_files import read_tensors

__all__ = ["load_gradient", "load_tensors"]


def load_gradient(path: Path, source: str) -> dict[str, Tensor]:
    """Returns the gradient in a file, float32 by parameter name, in the order of the file.

    Args:
        path: file of safetensors, or of arrays as `numpy.savez` writes them.
        source: the option that names the file, for errors.

    Raises:
        DataError: the file cannot be read, or holds NaN or infinity.
        ConfigError: the file has another format, no tensor, or a tensor that is no gradient.
    """
    tensors = load_tensors(path, source)
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() or not tensor.numel():
            shape = "x".join(map(str, tensor.shape))
            raise ConfigError(f"{source} {path}: {name} is {tensor.dtype} of {shape}, no gradient")
        if not tensor.isfinite().all():
            raise DataError(f"{source} {path}: {name} holds NaN or infinity")
    if not tensors:
        raise ConfigError(f"{source} {path}: there is no tensor in it")
    return {name: tensor.float() for name, tensor in tensors.items()}


def load_tensors(path: Path, source: str) -> Mapping[str, Tensor]:
    """Returns all tensors of a file, of any type; nothing is unpickled. Raises the errors of
    `load_gradient`.
    """

    def of_arrays(path: Path) -> dict[str, Tensor]:
        arrays = read_arrays(path, source)
        return {name: tensor_of(path, source, name, array) for name, array in arrays.items()}

    kinds = ".safetensors, or .npz with an array for each parameter"
    return read_tensors(path, source, of_arrays, kinds)


def tensor_of(path: Path, source: str, name: str, array: NDArray[Any]) -> Tensor:
    """Returns an array of a file as a tensor."""
    try:
        return torch.from_numpy(array)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{source} {path}: {name} is {array.dtype}, no gradient") from error
