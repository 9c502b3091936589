"""Broadcast of the initial weights."""

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor, nn

from atomo.errors import FrameError
from atomo.exchange.collectives.collective import Collective

__all__ = ["replicate", "replicate_tensors"]


def replicate(model: nn.Module, collective: Collective) -> None:
    """Copies the parameters and buffers of rank 0 to every rank, bit for bit.

    Raises:
        FrameError: a tensor has another size on rank 0.
    """
    replicate_tensors([*model.named_parameters(), *model.named_buffers()], collective)


@torch.no_grad()
def replicate_tensors(named: Iterable[tuple[str, Tensor]], collective: Collective) -> None:
    """Copies named tensors of rank 0 to every rank, bit for bit.

    Raises:
        FrameError: a tensor has another size on rank 0.
    """
    for name, tensor in named:
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
