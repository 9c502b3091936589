"""A master's weights on its device, and their copies in the model on the host for checkpoints."""

from collections.abc import Mapping, Sequence
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from atomo.core.devices import to_device, to_host
from atomo.fusion import Bucket, flatten

__all__ = ["MasterWeights", "on_host"]


@final
class MasterWeights:
    """All parameters of a model in one flat tensor on a device; on the CPU the model shares it."""

    def __init__(self, model: nn.Module, buckets: Sequence[Bucket], device: torch.device) -> None:
        """Copies the weights of a model to a device.

        Args:
            model: on the CPU, where it stays.
            buckets: give the order of the parameters.
            device: of the optimizer's steps.
        """
        self._host = flatten(model, buckets)
        self.flat: Float[Tensor, " n"] = to_device(self._host, device)
        """Change it in place."""

    def to_model(self) -> None:
        """Copies the current weights to the model."""
        if self.flat is not self._host:
            self._host.copy_(self.flat)

    def from_model(self) -> None:
        """Copies the weights from the model."""
        if self.flat is not self._host:
            self.flat.copy_(self._host)


def on_host(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns a state on the CPU, with a single wait for the device."""
    return dict(zip(state, to_host([*state.values()]), strict=True))
