"""The weights where a master steps them, beside the model on its host that checkpoints are of."""

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
    """All parameters of a model in one row on a device; on the CPU they are the model's own."""

    def __init__(self, model: nn.Module, buckets: Sequence[Bucket], device: torch.device) -> None:
        """Creates the weights that the model has.

        Args:
            model: on the CPU, where it stays.
            buckets: in whose order the parameters lie.
            device: where they are to be stepped.
        """
        self._host = flatten(model, buckets)
        self.flat: Float[Tensor, " n"] = to_device(self._host, device)
        """Change it in place."""

    def to_model(self) -> None:
        """Gives the model the weights as they are now."""
        if self.flat is not self._host:
            self._host.copy_(self.flat)

    def from_model(self) -> None:
        """Takes the weights that the model was given."""
        if self.flat is not self._host:
            self.flat.copy_(self._host)


def on_host(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns a state on the CPU, with one wait for all of it."""
    return dict(zip(state, to_host([*state.values()]), strict=True))
