"""Weight decay that is added to gradients before the codec, in place of the optimizer."""

from collections.abc import Callable, Mapping
from typing import Final, final

from torch import Tensor
from torch.distributed.tensor import DTensor

from atomo.kernels import peaks

__all__ = ["NO_DECAY", "Decay", "local"]


@final
class Decay:
    """The weight decay of parameters, by name.

    A memory applies momentum to the sum of gradient and decay, as plain SGD does. All ranks have
    the same weights, so the average contains the decay once.
    """

    def __init__(
        self, parameters: Mapping[str, Tensor], decay_of: Callable[[Tensor], float]
    ) -> None:
        """Creates the decay of these parameters.

        Args:
            parameters: the parameters by name; the gradients of a DTensor are those of its local
                rows.
            decay_of: returns the current decay of a parameter.
        """
        self._parameters, self._decay_of = dict(parameters), decay_of

    def add_to(self, gradients: Mapping[str, Tensor], scale: float) -> None:
        """Adds the decay to gradients, in place.

        A gradient of zeros does not change: its parameter was not used on this rank, and is not
        part of the average.

        Args:
            gradients: the gradients by parameter name.
            scale: the factor by which the gradients were multiplied.
        """
        decays = {name: decay for name in gradients if (decay := self._of(name))}
        if not decays:
            return
        magnitudes = peaks.largest([gradients[name] for name in decays])
        for (name, decay), magnitude in zip(decays.items(), magnitudes, strict=True):
            if magnitude:
                gradient = gradients[name]
                weights = local(self._parameters[name]).to(gradient.device)
                gradient.add_(weights, alpha=decay * scale)

    def _of(self, name: str) -> float:
        return self._decay_of(self._parameters[name]) if name in self._parameters else 0.0


def local(parameter: Tensor) -> Tensor:
    """Returns the weights of a parameter on this rank."""
    weights = parameter.detach()
    return weights.to_local() if isinstance(weights, DTensor) else weights


NO_DECAY: Final = Decay({}, lambda parameter: 0.0)
