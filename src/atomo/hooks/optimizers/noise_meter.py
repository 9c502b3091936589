"""The noise of a codec in a hook, measured at every step: squared norms before and after."""

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
    """Factor on the learning rate, the same on all ranks.

    Ranks gather three numbers a step, since the squared norm of one gradient has other bits on
    ranks with another number of threads. If a host is one worker, its rank that encodes measures.
    """

    def __init__(self, collective: Collective, is_noisy: Callable[[int], bool]) -> None:
        """Begins at a factor of 1.

        Args:
            collective: all ranks.
            is_noisy: True for a step in which a codec with noise encodes.
        """
        self._collective, self._is_noisy = collective, is_noisy
        self._damping = Damping()
        self._measures = False  # in the step under way
        self._gradient: list[Tensor] = []  # norms of this rank's gradients, chunk by chunk
        self._estimate: list[Tensor] = []  # norms of their averages
        self.factor = 1.0
        """Factor on the learning rate of the last step."""

    def begin(self, step: int) -> None:
        """Begins a step, or goes on with it."""
        self._measures = self._is_noisy(step)

    def before(self, chunk: Chunk, scale: float) -> None:
        """Measures gradients, multiplied with `scale`, that this rank is about to encode."""
        if self._measures:
            self._gradient.append(norm_of(chunk) / scale)

    def after(self, chunk: Chunk, scale: float) -> None:
        """Measures their averages, multiplied alike."""
        if self._measures:
            self._estimate.append(norm_of(chunk) / scale)

    def close(self) -> None:
        """Ends a step: ranks agree on its factor."""
        if not self._measures:
            self.factor = 1.0
            return
        own = [square(self._gradient), square(self._estimate), float(bool(self._gradient))]
        self._gradient, self._estimate = [], []
        data = np.asarray(own, np.float64).view(np.uint8)
        gathered = self._collective.gather(data, "the noise of a step")
        squares = np.stack([measured(data) for data in gathered])
        workers = squares[:, 2].sum()  # that encoded
        gradient, estimate = float(squares[:, 0].sum() / workers), float(squares[0, 1])
        if math.isfinite(gradient) and math.isfinite(estimate):  # else the step is left out
            self.factor = self._damping.factor(gradient, estimate)

    def state_dict(self) -> dict[str, Any]:
        """Returns the two means, also before the first step, for checkpoints that load in place."""
        own = self._damping.state_dict().get(KEY, torch.zeros(2))
        return {KEY: own.tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replaces the two means, where a state has them.

        Raises:
            CheckpointError: it has something else in their place.
        """
        if KEY not in state:
            return
        found = state[KEY]
        if not isinstance(found, list) or not all(isinstance(one, float) for one in found):
            raise CheckpointError(f"{KEY} must be two numbers, got {found}")
        self._damping.load_state_dict({KEY: torch.tensor(found, dtype=torch.float64)})


def norm_of(chunk: Chunk) -> Tensor:
    """Returns the norm of a chunk's gradients, on their device."""
    gradients = chunk.gradients.values()
    norms = [torch.linalg.vector_norm(one, dtype=torch.float32) for one in gradients]
    norm: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return norm


def square(norms: Sequence[Tensor]) -> float:
    """Returns the squared norm of all chunks together."""
    return sum((float(norm) ** 2 for norm in to_host(norms)), 0.0)


def measured(data: Bytes) -> np.ndarray:
    """Returns the numbers of a rank: squared norms of its gradient and of the average, and whether
    it encoded.
    """
    return np.frombuffer(data.tobytes(), np.float64)
