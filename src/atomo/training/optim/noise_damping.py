"""Damping of the learning rate by the noise of an unbiased codec.

An unbiased estimate C(g) with E|C(g) - g|^2 <= omega |g|^2 is longer than the gradient: with W
workers E|mean C(g_i)|^2 is up to (1 + omega / W) |g|^2, and the largest stable learning rate falls
by that factor (Khirirat, Feyzmahdavian and Johansson, "Distributed Learning with Compressed
Gradients", 2018, theorem 1; Gower et al., "SGD: General Analysis and Improved Rates", ICML 2019).
Omega depends on the gradients; for `svd`, on their spectra. So the factor is measured.
"""

import math
from collections.abc import Mapping
from typing import Final, final

import torch
from torch import Tensor

from atomo.errors import CheckpointError

__all__ = ["Damping", "without_damping"]

SMOOTHING: Final = 0.9  # weight of the past; higher => steadier, but slower
KEY: Final = "noise_damping"


@final
class Damping:
    """The factor on the learning rate: E|gradient|^2 over E|estimate|^2, at most 1.

    Both are exponential means over the steps so far, so that the factor depends on the run alone. A
    checkpoint has the two numbers, and a resumed run continues with the same bits.
    """

    def __init__(self) -> None:
        self._gradient = self._estimate = 0.0

    def factor(self, gradient: float, estimate: float) -> float:
        """Returns the factor for the next step.

        Args:
            gradient: the mean over the workers of the squared norms of their gradients before
                encoding. It is at least the squared norm of the mean gradient, so that a codec
                without noise has factor 1.
            estimate: the squared norm of the mean of the decoded gradients.
        """
        self._gradient = SMOOTHING * self._gradient + (1 - SMOOTHING) * gradient
        self._estimate = SMOOTHING * self._estimate + (1 - SMOOTHING) * estimate
        # 1 / (1 + omega / W), measured: |g|^2 over |estimate|^2; never above 1.
        if not (0 < self._gradient < self._estimate < math.inf):
            return 1.0
        return self._gradient / self._estimate

    def state_dict(self) -> dict[str, Tensor]:
        """Returns the state for a checkpoint; empty if nothing was measured."""
        if not self._estimate:
            return {}
        return {KEY: torch.tensor([self._gradient, self._estimate], dtype=torch.float64)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restores the result of `state_dict`; other entries are ignored."""
        if KEY not in state:
            return
        try:
            self._gradient, self._estimate = map(float, state[KEY])
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"{KEY} must be two numbers, got {state[KEY]}") from error


def without_damping(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns a checkpoint's state of the optimizer alone."""
    return {name: tensor for name, tensor in state.items() if name != KEY}
