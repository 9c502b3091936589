"""Error feedback after Adam's preconditioner: the update is compressed, and not the gradient.

Chen et al., "Efficient-Adam: Communication-Efficient Distributed Adam", 2022 (arXiv:2205.14473);
Kingma and Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, final

import torch
from jaxtyping import Float

from atomo.codecs import Codec
from atomo.errors import CheckpointError, ConfigError
from atomo.memory.base import Layout, Memory
from atomo.memory.residual import Residual
from atomo.memory.store import Store

__all__ = ["EfficientAdam"]

RESIDUAL, MEAN, SQUARE, STEPS = "residual/", "exp_avg/", "exp_avg_sq/", "steps/"  # in a state


@final
class EfficientAdam(Memory):
    """Encodes u + r, where u is Adam's update of this worker's gradients, and keeps the rest as r.

    m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2; u = m_hat / (sqrt(v_hat) + eps).
    The optimizer only subtracts the average of the sent updates times the learning rate, with
    AdamW's weight decay: p = p - lr (u + wd p). Adam after the average would divide delayed parts
    by their own length. With a lossless codec and one worker this is AdamW.
    """

    id: ClassVar[str] = "adam"
    feeds_back: ClassVar[bool] = True
    makes_update: ClassVar[bool] = True
    vectors: ClassVar[tuple[str, ...]] = (RESIDUAL, MEAN, SQUARE)
    numbers: ClassVar[tuple[str, ...]] = (STEPS,)
    statistics: ClassVar[tuple[str, ...]] = (MEAN, SQUARE, STEPS)
    settings: ClassVar[Mapping[str, type]] = MappingProxyType(
        {"beta1": float, "beta2": float, "eps": float}
    )

    def __init__(self, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8) -> None:
        """Builds an empty memory.

        Args:
            beta1: the weight of the past in the mean of gradients; higher => longer memory.
            beta2: the same in the mean of their squares.
            eps: added to the root of the mean square; higher => shorter steps of small gradients.

        Raises:
            ConfigError: a setting is out of range.
        """
        if not (0 <= beta1 < 1 and 0 <= beta2 < 1):
            raise ConfigError(f"adam: beta1 and beta2 must be in [0, 1), got {beta1} and {beta2}")
        if not 0 < eps < math.inf:
            raise ConfigError(f"adam: eps must be above 0, got {eps}")
        self._beta1, self._beta2, self._eps = beta1, beta2, eps
        self._mean, self._square = Store(), Store()
        self._steps: dict[str, torch.Tensor] = {}  # of each parameter: a parameter may miss steps
        self._residual = Residual()

    def encode(
        self,
        codec: Codec[Any],
        gradient: Float[torch.Tensor, "..."],
        layout: Layout,
        generator: torch.Generator,
    ) -> Any:
        self._precondition(gradient, layout)
        return self._residual.encode(codec, gradient, layout, generator)

    def encode_all(
        self,
        codec: Codec[Any],
        gradients: Sequence[Float[torch.Tensor, "..."]],
        layouts: Sequence[Layout],
        generators: Sequence[torch.Generator],
    ) -> Iterator[Any]:
        for gradient, layout in zip(gradients, layouts, strict=True):
            self._precondition(gradient, layout)
        yield from self._residual.encode_all(codec, gradients, layouts, generators)

    def _precondition(self, gradient: Float[torch.Tensor, "..."], layout: Layout) -> None:
        """Replaces a gradient by Adam's update."""
        mean = self._mean.vector(layout, gradient).view(gradient.shape)
        square = self._square.vector(layout, gradient).view(gradient.shape)
        mean.lerp_(gradient, 1 - self._beta1)
        square.mul_(self._beta2).addcmul_(gradient, gradient, value=1 - self._beta2)
        step = self._count(layout)
        torch.sqrt(square, out=gradient)
        gradient.div_(math.sqrt(1 - self._beta2**step)).add_(self._eps)
        torch.div(mean, gradient, out=gradient)
        gradient.div_(1 - self._beta1**step)

    def _count(self, layout: Layout) -> float:
        """Returns the number of this step to the parameters of a layout, from 1."""
        for name in layout:
            self._steps.setdefault(name, torch.zeros((), dtype=torch.float64)).add_(1)
        return max(float(self._steps[name]) for name in layout)

    def take_back(self, layout: Layout, sent: Float[torch.Tensor, " n"]) -> None:
        self._residual.take_back(layout, sent)

    def state_dict(self, *, copy: bool = True) -> dict[str, torch.Tensor]:
        steps = {name: count.clone() if copy else count for name, count in self._steps.items()}
        parts = {
            RESIDUAL: self._residual.state_dict(copy=copy),
            MEAN: self._mean.state_dict(copy),
            SQUARE: self._square.state_dict(copy),
            STEPS: steps,
        }
        return {prefix + name: t for prefix, part in parts.items() for name, t in part.items()}

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        parts: dict[str, dict[str, torch.Tensor]] = {
            prefix: {} for prefix in (*self.vectors, *self.numbers)
        }
        for key, tensor in state.items():
            prefix, slash, name = key.partition("/")
            if prefix + slash not in parts:
                raise CheckpointError(f"memory 'adam' cannot hold {key!r}")
            if prefix + slash == STEPS and not 0 <= float(tensor) < math.inf:
                raise CheckpointError(f"{key!r} must be a number of steps, got {float(tensor):g}")
            parts[prefix + slash][name] = tensor
        self._residual.load_state_dict(parts[RESIDUAL])
        self._mean.load_state_dict(parts[MEAN])
        self._square.load_state_dict(parts[SQUARE])
        self._steps = {name: count.double().cpu().clone() for name, count in parts[STEPS].items()}
