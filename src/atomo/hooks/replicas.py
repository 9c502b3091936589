"""Broadcast of the initial weights."""

import numpy as np
import torch
from torch import Tensor, nn

from atomo.errors import FrameError
from atomo.exchange.collectives.collective import Collective

__all__ = ["replicate"]


def replicate(model: nn.Module, collective: Collective) -> None:
    """Copies the parameters and buffers of rank 0 to every rank, bit for bit.

    Raises:
        FrameError: a tensor has another size on rank 0.
    """
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if tensor.numel():
                copy_first(tensor.detach(), collective, f"the weights of {name}")


def copy_first(tensor: Tensor, collective: Collective, label: str) -> None:
    """Replaces a tensor by that of rank 0."""
    own = tensor.cpu().contiguous().flatten().view(torch.uint8)
    # A copy: rank 0 may change its weights or buffers before the last rank has read the payload.
    payload = own.numpy().copy() if collective.rank == 0 else np.zeros(1, np.uint8)
    first, *_ = collective.gather(payload, label)  # reads all payloads: the gather must complete
    if first.size != own.numel():
        raise FrameError(f"rank 0 has {label} in {first.size} bytes; this rank in {own.numel()}")
    weights = torch.from_numpy(first.copy()).view(tensor.dtype).view(tensor.shape)
    tensor.copy_(weights)
