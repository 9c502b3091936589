"""The moving average of the weights, which a checkpoint has in addition to them.

Polyak and Juditsky, "Acceleration of Stochastic Approximation by Averaging", 1992; exponential as
in `torch.optim.swa_utils.get_ema_multi_avg_fn`.
"""

from collections.abc import Mapping, Sequence
from typing import Final, final

import torch
from jaxtyping import Float
from torch import Tensor

from atomo.fusion import Bucket, named_slices

__all__ = ["AVERAGE", "WeightAverage", "averaged", "without_average"]

AVERAGE: Final = "average"  # in the state of an optimizer: average/PARAMETER


@final
class WeightAverage:
    """Exponential moving average a = decay a + (1 - decay) w; it begins with the first weights."""

    def __init__(self, decay: float) -> None:
        self._decay = decay
        self.value: Float[Tensor, " n"] | None = None
        """None before the first step."""

    @torch.no_grad()
    def update(self, weights: Float[Tensor, " n"], steps: int = 1) -> None:
        """Updates the average after a step, or after a round.

        Args:
            weights: the weights then.
            steps: the number of steps in the round: the average forgets at the same pace.
        """
        if self.value is None:
            self.value = weights.clone()
        else:
            self.value.lerp_(weights, 1 - self._decay**steps)

    def state_dict(self, buckets: Sequence[Bucket]) -> dict[str, Tensor]:
        """Returns the average by parameter name, for the state of an optimizer."""
        if self.value is None:
            return {}
        slices = named_slices(self.value, buckets)
        return {f"{AVERAGE}/{name}": tensor for name, tensor in slices}


def averaged(model: Mapping[str, Tensor], optimizer: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns a checkpoint's model with averaged weights; empty if it has no average."""
    prefix = AVERAGE + "/"
    average = {
        name.removeprefix(prefix): t for name, t in optimizer.items() if name.startswith(prefix)
    }
    return {**model, **average} if average else {}


def without_average(optimizer: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns an optimizer's state for a rank that repeats steps and keeps no average."""
    return {name: t for name, t in optimizer.items() if not name.startswith(AVERAGE + "/")}
