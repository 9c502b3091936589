"""The optimizer that runs a rule with one bit an entry, and its checkpoints."""

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, final

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor
from torch.optim import Optimizer

from atomo.errors import CheckpointError, ConfigError
from atomo.exchange.collectives.collective import Collective
from atomo.hooks.gradient_owners import HOOKS, OPTIMIZERS
from atomo.hooks.onebit.rules import MomentumRule, ParameterStep
from atomo.hooks.onebit.sign_mean import SignMean
from atomo.hooks.replicas import replicate_tensors

__all__ = ["OneBitOptimizer"]

EXTRA: Final = "onebit"  # in a state: what torch.optim.Optimizer has no place for
ERRORS: Final = "errors"


@final
class OneBitOptimizer(Optimizer):
    """An optimizer that averages over ranks itself: the model must not be in DDP."""

    def __init__(
        self,
        params: Iterable[Any],
        defaults: dict[str, Any],
        rule: MomentumRule,
        collective: Collective,
    ) -> None:
        """Makes an optimizer, and copies the weights of rank 0 to all ranks.

        Args:
            params: parameters, or parameter groups.
            defaults: the options of groups that do not have them.
            rule: the update rule.
            collective: the ranks.

        Raises:
            ConfigError: a hook or another optimizer averages a parameter, or a parameter is not
                float32.
        """
        self._complete = False
        super().__init__(params, defaults)
        self._complete = True
        self._rule, self._step = rule, 0
        self._weights = [p for group in self.param_groups for p in group["params"]]
        for parameter in self._weights:
            if parameter.dtype != torch.float32 or not parameter.is_contiguous():
                raise ConfigError(
                    f"a parameter of shape {tuple(parameter.shape)} is {parameter.dtype}: "
                    "parameters must be float32 and contiguous"
                )
        for owners in (OPTIMIZERS, HOOKS):
            owners.check_free(self._weights)
        named = [(f"parameter {number}", p) for number, p in enumerate(self._weights)]
        replicate_tensors(named, collective)
        counts = [p.numel() for p in self._weights]
        sizes = [sum(counts)] if rule.fused else counts
        self.mean = SignMean(collective, sizes, self._weights[0].device)
        """The mean with its errors; `mean.sent_bytes` counts the bytes of signs."""
        for parameter in self._weights:
            self._begin(self.state[parameter], parameter)
        OPTIMIZERS.add(self, self._weights)

    def _begin(self, state: dict[str, Tensor], parameter: Tensor) -> None:
        for kind in self._rule.kinds:
            state[kind] = torch.zeros(parameter.numel(), device=parameter.device)
        for kind, value in self._rule.numbers.items():
            state[kind] = torch.tensor(value, device=parameter.device)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Averages over ranks and takes a step. All ranks must call it.

        Raises:
            Diverged: a gradient of some rank is not finite; on all ranks.
        """
        with torch.enable_grad():
            loss = None if closure is None else closure()
        self._step += 1
        slots = [
            ParameterStep(parameter, gradient_of(parameter), self.state[parameter], group)
            for group in self.param_groups
            for parameter in group["params"]
        ]
        self._rule.step(slots, self.mean, self._step)
        return loss

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group while the optimizer is made."""
        if self._complete:
            raise ConfigError("give all parameter groups when the optimizer is made")
        super().add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of this rank, with its own errors: each rank saves its own."""
        rank = str(self.mean.collective.rank)
        return self._described({rank: self._own_errors()})

    def gather(self) -> dict[str, Any] | None:
        """Gathers the state with the errors of all ranks at rank 0; None on other ranks.

        All ranks must call it, between two steps. Any number of ranks can load it.
        """
        own = {name: error.cpu().contiguous() for name, error in self._own_errors().items()}
        data = np.frombuffer(save(own), np.uint8)
        answers = [*self.mean.collective.gather(data, "the errors of all ranks")]
        if self.mean.collective.rank:
            return None
        return self._described({str(n): load(a.tobytes()) for n, a in enumerate(answers)})

    def _own_errors(self) -> dict[str, Tensor]:
        return {name: error.clone() for name, error in self._errors_by_name().items()}

    def _described(self, errors: dict[str, dict[str, Tensor]]) -> dict[str, Any]:
        extra = {
            "step": self._step,
            "sign_step": self.mean.step,
            "ranks": self.mean.collective.size,
            "counters": dict(self._rule.counters),
            ERRORS: errors,
        }
        # A copy, as the errors are, so that a later step does not change a part of the state.
        return {**copy.deepcopy(super().state_dict()), EXTRA: extra}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state of `state_dict` or `gather`.

        The same number of ranks continues bit for bit. Another number needs a state of `gather`:
        every rank then begins with the error of the mean, and what was kept is still sent once.

        Raises:
            CheckpointError: the state is of another optimizer, or lacks the errors of some ranks.
        """
        extra = state_dict.get(EXTRA)
        if not isinstance(extra, Mapping) or extra["counters"].keys() != self._rule.counters.keys():
            raise CheckpointError("the state is not of this optimizer: it has no errors of signs")
        own, other = super().state_dict(), dict(state_dict)
        other.pop(EXTRA)
        if kinds_in(other) != kinds_in(own):
            raise CheckpointError("the state has other vectors than this optimizer")
        self._load_errors(extra[ERRORS], extra["ranks"])
        super().load_state_dict(copy.deepcopy(other))  # PyTorch would share its tensors
        self._step, self.mean.step = extra["step"], extra["sign_step"]
        self._rule.counters.update(extra["counters"])

    def _load_errors(self, errors: Mapping[str, Mapping[str, Tensor]], ranks: int) -> None:
        mean, rank = self.mean, str(self.mean.collective.rank)
        if ranks == mean.collective.size and rank in errors:
            for name, error in self._errors_by_name().items():
                error.copy_(errors[rank][name])
            return
        missing = [number for number in range(ranks) if str(number) not in errors]
        if missing:
            raise CheckpointError(
                f"rank {rank} of {mean.collective.size} needs the errors of all {ranks} ranks, and "
                f"the state lacks those of ranks {missing}: load a state of gather()"
            )
        in_order = [errors[str(number)] for number in range(ranks)]
        for number, error in enumerate(mean.worker_errors):
            workers = torch.stack([own[f"worker/{number}"] for own in in_order]).mean(0)
            error.copy_(workers + torch.cat([own[f"server/{number}"] for own in in_order]))
        for error in mean.server_errors:
            error.zero_()

    def _errors_by_name(self) -> dict[str, Tensor]:
        mean = self.mean
        worker = {f"worker/{number}": error for number, error in enumerate(mean.worker_errors)}
        return worker | {f"server/{number}": e for number, e in enumerate(mean.server_errors)}


def gradient_of(parameter: Tensor) -> Tensor:
    """Returns a flat copy of a gradient; zeros if there is none."""
    if parameter.grad is None:
        return torch.zeros(parameter.numel(), device=parameter.device)
    return parameter.grad.detach().reshape(-1).float().clone()


def kinds_in(state: Mapping[str, Any]) -> dict[Any, dict[str, tuple[int, ...]]]:
    """Returns the shape of each entry of a state, by parameter."""
    return {
        number: {kind: tuple(value.shape) for kind, value in entries.items()}
        for number, entries in state["state"].items()
    }
