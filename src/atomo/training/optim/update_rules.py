"""PyTorch's SGD and Adam on one flat tensor, by the functions that its optimizer classes call.

The first step of any `torch.optim.Optimizer` imports PyTorch's compiler, which takes as long as the
import of PyTorch itself. The functions do not import it, and give the same bits.
"""

from typing import Final, Protocol, final, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.sgd import sgd

__all__ = ["COUNT", "Adam", "Sgd", "UpdateRule"]

COUNT: Final = "step"  # a single number; all other states have an entry for each weight

# Entries of one update: the temporary tensors of a rule stay in the cache. For the whole gradient,
# Adam would need three temporary tensors of its size.
PIECE: Final = 1 << 18

BETA_1: Final = 0.9  # PyTorch's defaults
BETA_2: Final = 0.999
EPSILON: Final = 1e-8


@runtime_checkable
class UpdateRule(Protocol):
    """The rule by which a gradient changes weights."""

    state: dict[str, Tensor]  # by kind; empty before the first step

    def step(
        self, weights: Float[Tensor, " n"], gradient: Float[Tensor, " n"], rate: float
    ) -> None:
        """Changes `weights` in place; `rate` is the learning rate."""


@final
class Sgd:
    """Gradient descent with momentum (Sutskever et al. 2013, as in `torch.optim.SGD`)."""

    def __init__(self, momentum: float, nesterov: bool, weight_decay: float) -> None:
        self.state: dict[str, Tensor] = {}
        self._momentum = momentum
        self._nesterov = nesterov
        self._weight_decay = weight_decay

    @torch.no_grad()
    def step(
        self, weights: Float[Tensor, " n"], gradient: Float[Tensor, " n"], rate: float
    ) -> None:
        parts, buffer = pieces(weights), self.state.get("momentum_buffer")
        buffers: list[Tensor | None] = [None] * len(parts) if buffer is None else [*pieces(buffer)]
        sgd(
            parts,
            pieces(gradient),
            buffers,
            lr=rate,
            momentum=self._momentum,
            nesterov=self._nesterov,
            weight_decay=self._weight_decay,
            dampening=0.0,
            maximize=False,
        )
        if buffer is None and self._momentum:
            self.state["momentum_buffer"] = torch.cat(
                [piece for piece in buffers if piece is not None]
            )


@final
class Adam:
    """Adam (Kingma and Ba 2015, arXiv:1412.6980, as in `torch.optim.Adam`)."""

    def __init__(self, weight_decay: float) -> None:
        self.state: dict[str, Tensor] = {}
        self._weight_decay = weight_decay

    @torch.no_grad()
    def step(
        self, weights: Float[Tensor, " n"], gradient: Float[Tensor, " n"], rate: float
    ) -> None:
        if not self.state:
            self.state = {
                COUNT: torch.tensor(0.0),
                "exp_avg": torch.zeros_like(weights),
                "exp_avg_sq": torch.zeros_like(weights),
            }
        parts, count = pieces(weights), self.state[COUNT]
        counts = [count.clone() for _ in parts]
        count += 1
        adam(
            parts,
            pieces(gradient),
            pieces(self.state["exp_avg"]),
            pieces(self.state["exp_avg_sq"]),
            [],
            counts,
            lr=rate,
            beta1=BETA_1,
            beta2=BETA_2,
            eps=EPSILON,
            weight_decay=self._weight_decay,
            amsgrad=False,
            maximize=False,
        )


def pieces(tensor: Float[Tensor, " n"]) -> list[Tensor]:
    """Returns consecutive views of a flat tensor; on a GPU, or with several threads, all of it as
    one view: they would synchronize after each piece.
    """
    alone = tensor.device.type == "cpu" and torch.get_num_threads() == 1
    return [*torch.split(tensor, PIECE)] if alone else [tensor]
