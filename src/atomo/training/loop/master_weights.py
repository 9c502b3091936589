"""A master's weights and buffers on its device, and their copies in the model for checkpoints."""

from collections.abc import Mapping, Sequence
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from atomo.core.devices import to_device, to_host
from atomo.fusion import Bucket, flatten

__all__ = ["MasterWeights", "divide", "joined", "on_host"]


@final
class MasterWeights:
    """All parameters of a model, and the buffers that have a mean, in one flat tensor on a device;
    on the CPU a model without such buffers shares it.
    """

    def __init__(
        self,
        model: nn.Module,
        buckets: Sequence[Bucket],
        device: torch.device,
        buffers: Sequence[Tensor] = (),
    ) -> None:
        """Copies the weights of a model to a device.

        Args:
            model: on the CPU, where it stays.
            buckets: give the order of the parameters.
            device: of the optimizer's steps.
            buffers: the buffers of the model that follow the parameters, in their order.
        """
        self._host, self._buffers = flatten(model, buckets), buffers
        whole = joined(self._host, buffers) if buffers else self._host
        self.flat: Float[Tensor, " n"] = to_device(whole, device)
        """Change it in place."""

    def to_model(self) -> None:
        """Copies the current weights and buffers to the model."""
        if self.flat is not self._host:
            divide(self.flat, [self._host, *self._buffers])

    def from_model(self) -> None:
        """Copies the weights and buffers from the model."""
        if self.flat is not self._host:
            self.flat.copy_(joined(self._host, self._buffers))


def joined(weights: Float[Tensor, " n"], buffers: Sequence[Tensor]) -> Float[Tensor, " m"]:
    """Returns a copy of weights, followed by buffers, as one flat tensor of float32."""
    return torch.cat([weights, *(buffer.flatten().to(weights) for buffer in buffers)])


def divide(flat: Float[Tensor, " n"], tensors: Sequence[Tensor]) -> None:
    """Copies consecutive parts of a flat tensor to tensors."""
    parts = torch.split(flat, [tensor.numel() for tensor in tensors])
    for part, tensor in zip(parts, tensors, strict=True):
        tensor.copy_(part.view(tensor.shape))


def on_host(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns a state on the CPU, with a single wait for the device."""
    return dict(zip(state, to_host([*state.values()]), strict=True))
