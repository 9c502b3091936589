"""Several optimizers that step together, such as Muon for matrices and AdamW for the rest."""

from collections.abc import Callable, Sequence
from typing import Any, final

from torch.optim import Optimizer

from atomo.errors import CheckpointError, ConfigError

__all__ = ["JoinedOptimizers"]


@final
class JoinedOptimizers(Optimizer):
    """Optimizers as one, with the parameter groups of all.

    It is a subclass of Optimizer because schedulers and scalers require one.
    """

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        """Joins optimizers, which must have no parameter in common.

        Raises:
            ConfigError: two optimizers step one parameter.
        """
        # Optimizer.__init__ would create groups of its own; these are the optimizers' objects, so
        # that a scheduler of the joined optimizer sets their rates.
        self.optimizers = [*optimizers]
        self.param_groups = [group for single in optimizers for group in single.param_groups]
        self.defaults: dict[str, Any] = {}
        parameters = [p for group in self.param_groups for p in group["params"]]
        if len(set(parameters)) < len(parameters):
            raise ConfigError("two of the optimizers step one parameter: give each to one of them")

    @property
    def state(self) -> dict[Any, Any]:  # type: ignore[override]
        """The state of all optimizers, by parameter."""
        return {p: state for single in self.optimizers for p, state in single.state.items()}

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Takes a step of each optimizer; a closure is called once."""
        loss = None if closure is None else closure()
        for single in self.optimizers:
            single.step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients."""
        for single in self.optimizers:
            single.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Returns the states of all optimizers as one: parameters are numbered in their order."""
        state: dict[int, Any] = {}
        groups: list[dict[str, Any]] = []
        begin = 0
        for own in (single.state_dict() for single in self.optimizers):
            state |= {begin + number: entries for number, entries in own["state"].items()}
            for group in own["param_groups"]:
                numbers = [begin + number for number in group["params"]]
                groups.append({**group, "params": numbers})
            begin = sum(len(group["params"]) for group in groups)
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state of `state_dict`.

        Raises:
            CheckpointError: the state has another number of parameter groups.
        """
        groups, begin = [*state_dict["param_groups"]], 0
        if len(groups) != len(self.param_groups):
            raise CheckpointError(
                f"the state has {len(groups)} parameter groups, and these optimizers have "
                f"{len(self.param_groups)}"
            )
        for single in self.optimizers:
            count = len(single.param_groups)
            own, groups = groups[:count], groups[count:]
            size = sum(len(group["params"]) for group in own)
            single.load_state_dict(part_of(state_dict["state"], own, begin, size))
            begin += size
        self.param_groups = [g for single in self.optimizers for g in single.param_groups]

    def __repr__(self) -> str:
        return f"JoinedOptimizers({self.optimizers!r})"


def part_of(
    state: dict[int, Any], groups: list[dict[str, Any]], begin: int, size: int
) -> dict[str, Any]:
    """Returns the state of one optimizer, whose parameters are numbered from 0."""
    own = {number - begin: state[number] for number in state if begin <= number < begin + size}
    shifted = [{**g, "params": [number - begin for number in g["params"]]} for g in groups]
    return {"state": own, "param_groups": shifted}
