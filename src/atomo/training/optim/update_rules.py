"""PyTorch's SGD, Adam and Muon on one flat tensor, by the functions that its optimizers call.

The first step of any `torch.optim.Optimizer` imports PyTorch's compiler, which takes as long as the
import of PyTorch itself. The functions do not import it, and give the same bits.
"""

from collections.abc import Sequence
from typing import Final, Protocol, final, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.optim._muon import muon
from torch.optim.adam import adam
from torch.optim.sgd import sgd

__all__ = ["COUNT", "Adam", "Muon", "Sgd", "UpdateRule"]

COUNT: Final = "step"  # a single number; all other states have an entry for each weight

# Entries of one update: the temporary tensors of a rule stay in the cache. For the whole gradient,
# Adam would need three temporary tensors of its size.
PIECE: Final = 1 << 18

BETA_1: Final = 0.9  # PyTorch's defaults
BETA_2: Final = 0.999
EPSILON: Final = 1e-8
MUON_MOMENTUM: Final = 0.95
NEWTON_SCHULZ: Final = (3.4445, -4.7750, 2.0315)


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
        self.state = self.state or zero_moments(weights)
        moments = self.state["exp_avg"], self.state["exp_avg_sq"]
        parts = [pieces(tensor) for tensor in (weights, gradient, *moments)]
        step_adam(parts, self.state[COUNT], rate, self._weight_decay)


@final
class Muon:
    """Muon for matrices, and Adam for the rest (Jordan et al. 2024, as in `torch.optim.Muon`).

    The length of a matrix's step is that of Adam's (Liu et al. 2025, arXiv:2502.16982), so that
    both have one learning rate.
    """

    def __init__(self, matrices: Sequence[tuple[slice, int]], rest: Sequence[slice]) -> None:
        """Makes a rule before its first step.

        Args:
            matrices: the positions of matrices, with their numbers of rows.
            rest: the positions of all other parameters.
        """
        self.state: dict[str, Tensor] = {}
        self._matrices, self._rest = matrices, rest

    @torch.no_grad()
    def step(
        self, weights: Float[Tensor, " n"], gradient: Float[Tensor, " n"], rate: float
    ) -> None:
        if not self.state:
            self.state = zero_moments(weights) | {"momentum_buffer": torch.zeros_like(weights)}
        moments = self.state["exp_avg"], self.state["exp_avg_sq"]
        parts = [[t[place] for place in self._rest] for t in (weights, gradient, *moments)]
        step_adam(parts, self.state[COUNT], rate, 0.0)
        buffer = self.state["momentum_buffer"]
        muon(
            *([t[place].view(rows, -1) for place, rows in self._matrices]
              for t in (weights, gradient, buffer)),
            lr=rate,
            weight_decay=0.0,
            momentum=MUON_MOMENTUM,
            nesterov=True,
            ns_coefficients=NEWTON_SCHULZ,
            ns_steps=5,
            eps=1e-7,
            adjust_lr_fn="match_rms_adamw",
            has_complex=False,
        )  # fmt: skip


def zero_moments(weights: Float[Tensor, " n"]) -> dict[str, Tensor]:
    """Returns the state of Adam before its first step."""
    return {
        COUNT: torch.tensor(0.0),
        "exp_avg": torch.zeros_like(weights),
        "exp_avg_sq": torch.zeros_like(weights),
    }


def step_adam(
    parts: Sequence[list[Tensor]], count: Tensor, rate: float, weight_decay: float
) -> None:
    """Takes a step of Adam.

    Args:
        parts: the views of weights, of gradients, and of both moments.
        count: the number of steps, which increases by 1.
        rate: the learning rate.
        weight_decay: the decay that is added to the gradient.
    """
    weights, gradients, first, second = parts
    counts = [count.clone() for _ in weights]
    count += 1
    adam(
        weights,
        gradients,
        first,
        second,
        [],
        counts,
        lr=rate,
        beta1=BETA_1,
        beta2=BETA_2,
        eps=EPSILON,
        weight_decay=weight_decay,
        amsgrad=False,
        maximize=False,
    )


def pieces(tensor: Float[Tensor, " n"]) -> list[Tensor]:
    """Returns consecutive views of a flat tensor; on a GPU, or with several threads, all of it as
    one view: they would synchronize after each piece.
    """
    alone = tensor.device.type == "cpu" and torch.get_num_threads() == 1
    return [*torch.split(tensor, PIECE)] if alone else [tensor]
