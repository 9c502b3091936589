"""Buffer for one tensor at a time, contiguous and float32 on the CPU, for codecs and memories."""

from typing import final

import torch
from torch import Tensor

from atomo.api.validate import check_reach

__all__ = ["ScratchTensor"]


@final
class ScratchTensor:
    """Buffer that is reused from tensor to tensor, as large as the largest."""

    def __init__(self) -> None:
        self._room = torch.empty(0)

    def copy_of(self, tensor: Tensor) -> Tensor:
        """Copies a tensor to float32; the copy may be changed, and is valid until the next call.

        Raises:
            CodecError: an entry is finite, but infinite in float32.
        """
        if tensor.numel() > self._room.numel():
            self._room = torch.empty(tensor.numel())
        own = self._room[: tensor.numel()].view(tensor.shape).copy_(tensor.detach())
        check_reach(tensor, own)
        return own

    def readable(self, tensor: Tensor) -> Tensor:
        """Returns the tensor itself if it is float32 on the CPU; else a copy."""
        if tensor.dtype is torch.float32 and tensor.device.type == "cpu":
            return tensor.detach()
        return self.copy_of(tensor)
