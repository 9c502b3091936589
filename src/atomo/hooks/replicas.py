"""Ranks begin with the same weights."""

import numpy as np
import torch
from torch import Tensor, nn

from atomo.errors import FrameError
from atomo.exchange.collectives.collective import Collective

__all__ = ["replicate"]


def replicate(model: nn.Module, collective: Collective) -> None:
    """Gives every rank the parameters and buffers of rank 0, bit for bit.

    Raises:
        FrameError: they are of other sizes.
    """
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if tensor.numel():
                copy_first(tensor.detach(), collective, f"the weights of {name}")


def copy_first(tensor: Tensor, collective: Collective, what: str) -> None:
    """Replaces a tensor by rank 0's."""
    mine = tensor.cpu().contiguous().flatten().view(torch.uint8)
    given = mine.numpy() if collective.rank == 0 else np.zeros(1, np.uint8)
    first, *_ = collective.gather(given, what)  # all are read: a gather has an end
    if first.size != mine.numel():
        raise FrameError(f"rank 0 has {what} in {first.size} bytes; this rank in {mine.numel()}")
    read = torch.from_numpy(first.copy()).view(tensor.dtype).view(tensor.shape)
    tensor.copy_(read)
