"""Tensors by name, such as a worker's state in a checkpoint, as a section of a frame."""

from collections.abc import Mapping

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from atomo.codecs import Field
from atomo.errors import FrameError, FrameFault
from atomo.transports.base import MAX_MESSAGE_BYTES
from atomo.wire import (
    Bytes,
    Header,
    Kind,
    pack_pieces,
    read_header,
    read_tensor_file,
    tensor_file,
    unpack,
)

__all__ = ["LIMIT", "State", "load_state", "read_state", "state_frame", "state_tensor"]

LIMIT = MAX_MESSAGE_BYTES  # bytes of a state: as many as travel

State = Mapping[str, Tensor]


def state_tensor(state: State) -> Tensor:
    """Returns a state as bytes, in the safetensors format."""
    return torch.from_numpy(np.concatenate([*tensor_file(state).pieces()]))


def state_frame(header: Header, state: State) -> Bytes:
    """Packs a state into a frame, with a single copy: it may take most of a rank's memory."""
    file = tensor_file(state)
    return pack_pieces(header, file.pieces(), file.size)


def read_state(frame: Bytes) -> dict[str, Tensor]:
    """Reads the inverse of `state_frame`."""
    if read_header(frame).kind is not Kind.STATE:
        raise FrameError("a state was expected", FrameFault.STRANGE)
    return load_state(unpack(frame, [Field(torch.uint8, (LIMIT,))])[0])


def load_state(section: UInt8[Tensor, " n"]) -> dict[str, Tensor]:
    """Reads the inverse of `state_tensor`, from a section, of which the tensors are views.

    Raises:
        FrameError: it is no safetensors file, or has dtypes unknown here.
    """
    try:
        return read_tensor_file(section.numpy())
    except FrameError as error:
        raise FrameError(f"a state is damaged: {error}") from error
