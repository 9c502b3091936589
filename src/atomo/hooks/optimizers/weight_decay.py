"""Weight decay that gradients get before they are encoded, in the place of an optimiser's."""

from collections.abc import Callable, Mapping
from typing import Final, final

from torch import Tensor
from torch.distributed.tensor import DTensor

from atomo.kernels import peaks

__all__ = ["NO_DECAY", "Decay", "local"]


@final
class Decay:
    """The weight decay of parameters, by name.

    A memory applies momentum to gradient and decay together, as plain SGD does. All ranks have the
    same weights, so that the average has the decay once.
    """

    def __init__(
        self, parameters: Mapping[str, Tensor], decay_of: Callable[[Tensor], float]
    ) -> None:
        """Makes the decay of these parameters.

        Args:
            parameters: by name; of a DTensor, gradients are of the local rows.
            decay_of: the decay of one of them at the moment.
        """
        self._parameters, self._decay_of = dict(parameters), decay_of

    def add_to(self, gradients: Mapping[str, Tensor], scale: float) -> None:
        """Adds the decay to gradients, in place.

        A gradient that is zero throughout stays so: its parameter was not used on this rank, and
        takes no part in the average.

        Args:
            gradients: by parameter name.
            scale: the factor that they were multiplied with.
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
    """Returns the weights that this rank has of a parameter."""
    weights = parameter.detach()
    return weights.to_local() if isinstance(weights, DTensor) else weights


NO_DECAY: Final = Decay({}, lambda parameter: 0.0)
