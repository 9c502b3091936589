"""The noise of a codec in a hook, from squared norms before and after each step's average."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from atomo.core.devices import to_host
from atomo.errors import CheckpointError
from atomo.exchange.collectives.collective import Collective
from atomo.hooks.adapter.chunks import Chunk
from atomo.training.optim.noise_damping import KEY, Damping
from atomo.wire import Bytes

__all__ = ["NoiseMeter"]


@final
class NoiseMeter:
    """Meter of the factor on the learning rate, which is the same on all ranks.

    Ranks gather three numbers in each step: a norm has different bits on ranks with different
    numbers of threads, so ranks must agree. If a host counts as one worker, the rank that encodes
    measures.
    """

    def __init__(self, collective: Collective, is_noisy: Callable[[int], bool]) -> None:
        """Creates a meter with a factor of 1.

        Args:
            collective: all ranks.
            is_noisy: returns True for a step in which a codec with noise encodes.
        """
        self._collective, self._is_noisy = collective, is_noisy
        self._damping = Damping()
        self._measures = False  # in the current step
        self._gradient: list[Tensor] = []  # norms of this rank's gradients, chunk by chunk
        self._estimate: list[Tensor] = []  # norms of their averages
        self.factor = 1.0
        """The factor on the learning rate of the last step."""

    def begin(self, step: int) -> None:
        """Begins a step; later calls in the same step change nothing."""
        self._measures = self._is_noisy(step)

    def before(self, chunk: Chunk, scale: float) -> None:
        """Measures gradients of this rank before compression; they are multiplied by `scale`."""
        if self._measures:
            self._gradient.append(norm_of(chunk) / scale)

    def after(self, chunk: Chunk, scale: float) -> None:
        """Measures averaged gradients; they are multiplied by `scale`."""
        if self._measures:
            self._estimate.append(norm_of(chunk) / scale)

    def close(self) -> None:
        """Ends a step; ranks agree on its factor."""
        if not self._measures:
            self.factor = 1.0
            return
        own = [square(self._gradient), square(self._estimate), float(bool(self._gradient))]
        self._gradient, self._estimate = [], []
        data = np.asarray(own, np.float64).view(np.uint8)
        gathered = self._collective.gather(data, "the noise of a step")
        squares = np.stack([measured(data) for data in gathered])
        workers = squares[:, 2].sum()  # the number of ranks that encoded
        gradient, estimate = float(squares[:, 0].sum() / workers), float(squares[0, 1])
        if math.isfinite(gradient) and math.isfinite(estimate):  # otherwise the means skip the step
            self.factor = self._damping.factor(gradient, estimate)

    def state_dict(self) -> dict[str, Any]:
        """Returns the two means. Zeros before the first step let checkpoints load in place."""
        own = self._damping.state_dict().get(KEY, torch.zeros(2))
        return {KEY: own.tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads the two means, if the state has them.

        Raises:
            CheckpointError: they are not two numbers.
        """
        if KEY not in state:
            return
        means = state[KEY]
        if not isinstance(means, list) or not all(isinstance(mean, float) for mean in means):
            raise CheckpointError(f"{KEY} must be two numbers, got {means}")
        self._damping.load_state_dict({KEY: torch.tensor(means, dtype=torch.float64)})


def norm_of(chunk: Chunk) -> Tensor:
    """Returns the norm of a chunk's gradients, on their device."""
    gradients = chunk.gradients.values()
    norms = [torch.linalg.vector_norm(gradient, dtype=torch.float32) for gradient in gradients]
    norm: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return norm


def square(norms: Sequence[Tensor]) -> float:
    """Returns the squared norm of all chunks together."""
    return sum((float(norm) ** 2 for norm in to_host(norms)), 0.0)


def measured(data: Bytes) -> np.ndarray:
    """Returns the numbers of a rank: the squared norms of its gradient and of the average, and 1.0
    if the rank encoded, else 0.0.
    """
    return np.frombuffer(data.tobytes(), np.float64)
