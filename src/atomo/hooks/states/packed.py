"""States as bytes: the tensors of a nested dictionary in safetensors, and the rest as JSON."""

import json
from collections.abc import Mapping
from typing import Any, Final

from safetensors.torch import load, save
from torch import Tensor

from atomo.errors import CheckpointError

__all__ = ["pack", "unpack"]

TREE: Final = "atomo"  # the key in the header
TENSOR: Final = "tensor"  # a dictionary with this key alone stands for a tensor
ITEMS: Final = "items"  # and with this key alone for a dictionary, whose keys may be numbers


def pack(state: Mapping[Any, Any]) -> bytes:
    """Returns a nested dictionary of tensors and plain values as bytes.

    >>> unpack(pack({0: {"step": 3, "betas": (0.9, 0.99)}}))
    {0: {'step': 3, 'betas': [0.9, 0.99]}}

    Raises:
        CheckpointError: a value is neither a tensor nor plain.
    """
    tensors: dict[str, Tensor] = {}
    tree = packed(state, tensors)
    try:
        return save(tensors, {TREE: json.dumps(tree)})
    except TypeError as error:
        raise CheckpointError(f"the state of an optimizer cannot be saved: {error}") from error


def packed(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Returns a value for JSON, and adds its tensors to `tensors`."""
    if isinstance(value, Tensor):
        tensors[str(len(tensors))] = value.detach().cpu().clone().contiguous()
        return {TENSOR: len(tensors) - 1}
    if isinstance(value, Mapping):
        return {ITEMS: [[key, packed(entry, tensors)] for key, entry in value.items()]}
    if isinstance(value, list | tuple):
        return [packed(entry, tensors) for entry in value]
    return value


def unpack(data: bytes) -> Any:
    """Returns the state of `pack`; tuples are lists.

    Raises:
        CheckpointError: the bytes are no such state.
    """
    try:
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + size])
        return unpacked(json.loads(header["__metadata__"][TREE]), load(data))
    except Exception as error:
        raise CheckpointError(f"the state of a replica is damaged: {error}") from error


def unpacked(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Returns the value that JSON stands for."""
    if isinstance(value, list):
        return [unpacked(entry, tensors) for entry in value]
    if not isinstance(value, dict):
        return value
    if TENSOR in value:
        return tensors[str(value[TENSOR])]
    return {key: unpacked(entry, tensors) for key, entry in value[ITEMS]}
