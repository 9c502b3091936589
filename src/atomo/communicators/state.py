"""Tensors by name, such as what a checkpoint keeps of a worker, as a section of a frame."""

from collections.abc import Mapping

import torch
from jaxtyping import UInt8
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from atomo.codecs import Field
from atomo.errors import FrameError
from atomo.transports.base import LARGEST
from atomo.wire import Bytes, Kind, read_header, unpack

__all__ = ["LIMIT", "State", "load_state", "read_state", "state_tensor"]

LIMIT = LARGEST  # bytes of a state: as many as travel

State = Mapping[str, Tensor]


def state_tensor(state: State) -> Tensor:
    """A state as bytes, in the safetensors format."""
    data = save({name: tensor.detach().cpu().contiguous() for name, tensor in state.items()})
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def read_state(frame: Bytes) -> dict[str, Tensor]:
    """The inverse of `state_tensor`, of a frame."""
    if read_header(frame).kind is not Kind.STATE:
        raise FrameError("a state was expected")
    return load_state(unpack(frame, [Field(torch.uint8, (LIMIT,))])[0])


def load_state(section: UInt8[Tensor, " n"]) -> dict[str, Tensor]:
    """The inverse of `state_tensor`, of a section.

    Raises:
        FrameError: it is no safetensors file, or has dtypes unknown here.
    """
    try:
        return load(section.numpy().tobytes())
    except (SafetensorError, KeyError) as error:
        raise FrameError(f"a state is damaged: {error}") from error
