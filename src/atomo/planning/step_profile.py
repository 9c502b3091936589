"""Times at which the gradients of a model are complete: passes of one worker in this process."""

import time
from dataclasses import dataclass
from typing import Final, final

import torch
from torch import Tensor
from torch.nn import Module

from atomo.workloads import Batch, Objective

__all__ = ["Profile", "measure_passes"]

WARM_UP: Final = 1  # passes that are not timed


@final
@dataclass(frozen=True)
class Profile:
    """One worker's passes over a batch, and the resulting gradient."""

    forward_s: float  # to the begin of the backward pass
    ready_s: tuple[float, ...]
    """Time of each gradient from the begin of the backward pass; parameters from the last to the
    first, as messages hold them.
    """
    backward_s: float
    gradient: dict[str, Tensor]
    """By parameter name, in forward order."""
    update_s: float = 0.0
    """Seconds of the optimizer's step."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of each gradient, from the last parameter to the first."""
        return tuple(4 * tensor.numel() for tensor in reversed(self.gradient.values()))


def measure_passes(
    model: Module, objective: Objective, batch: Batch, repetitions: int = 3
) -> Profile:
    """Times forward and backward passes; the fastest of `repetitions` counts.

    Args:
        model: in training mode on the CPU. Its gradients are replaced, its weights are not.
        objective: gives the loss.
        batch: of one worker and step.
        repetitions: number of timed passes, at least 1.
    """
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    best: tuple[float, float, list[float]] | None = None
    for repetition in range(WARM_UP + repetitions):
        times = time_pass(model, objective, batch, [*parameters.values()])
        if repetition >= WARM_UP and (best is None or times[0] + times[1] < best[0] + best[1]):
            best = times
    assert best is not None
    gradient = {
        name: torch.zeros_like(p) if p.grad is None else p.grad.detach().clone()
        for name, p in parameters.items()
    }
    return Profile(best[0], tuple(reversed(best[2])), best[1], gradient)


def time_pass(
    model: Module, objective: Objective, batch: Batch, parameters: list[torch.nn.Parameter]
) -> tuple[float, float, list[float]]:
    """Returns seconds of the forward pass, of the backward pass, and from the begin of the backward
    pass until each gradient.
    """
    for parameter in parameters:
        parameter.grad = None
    ready: dict[int, float] = {}
    hooks = [
        parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
            lambda _, number=number: ready.update({number: time.perf_counter()})
        )
        for number, parameter in enumerate(parameters)
    ]
    try:
        started = time.perf_counter()
        loss = objective.loss(model(*batch.inputs), batch.targets)
        turned = time.perf_counter()
        loss.backward()  # type: ignore[no-untyped-call]
        ended = time.perf_counter()
    finally:
        for hook in hooks:
            hook.remove()
    times = [ready.get(number, ended) - turned for number in range(len(parameters))]
    return turned - started, ended - turned, times
