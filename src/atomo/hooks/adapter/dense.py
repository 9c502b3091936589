"""Rules for what travels dense whatever the codec: small parameters, or all in the first steps.

Both as DRAGONN has them (Wang, Wu and Ng, "DRAGONN: Distributed Randomized Approximate Gradients of
Neural Networks", ICML 2022). A dense gradient includes what its memory kept.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, final

from torch import Tensor

from atomo.codecs.by_name import ByName, dense_below
from atomo.errors import CheckpointError, ConfigError

__all__ = ["NEVER", "DensePolicy"]

FORMAT: Final = 1  # of a state that says nothing of it
WITH_DENSE: Final = 2


@final
@dataclass(frozen=True)
class DensePolicy:
    """Limits of dense transfer: the same on all ranks, and to the end of a run."""

    dense_below: int = 0
    """Parameters of fewer entries are dense; higher => more bytes."""
    dense_steps: int = 0
    """Number of first steps in which all parameters are dense."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ConfigError(f"{name} must be a whole number from 0, got {value!r}")

    def rules(self, parameters: Mapping[str, Tensor]) -> ByName:
        """Returns the codecs of small parameters."""
        shapes = [(name, parameter.shape) for name, parameter in parameters.items()]
        return dense_below(shapes, self.dense_below)

    def covers(self, step: int) -> bool:
        """Returns True if all travels dense at a step, from 0."""
        return step < self.dense_steps

    def state_dict(self) -> dict[str, Any]:
        """Returns the rules for a state; states without rules have an older format."""
        if self == NEVER:
            return {"format": FORMAT}
        return {"format": WITH_DENSE} | asdict(self)

    def check(self, state: Mapping[str, Any]) -> None:
        """Raises CheckpointError if a state has other limits, or another format."""
        found, formats = state.get("format"), (FORMAT, WITH_DENSE)
        if found not in formats:
            raise CheckpointError(f"format {found!r}; this one reads {FORMAT} and {WITH_DENSE}")
        said = {name: state.get(name, 0) for name in asdict(self)}
        # torch.distributed.checkpoint fills in what it is asked for: then the form says it alone.
        if said != asdict(self) or (found == WITH_DENSE) != (self != NEVER):
            mine = ", ".join(f"{name} {value}" for name, value in asdict(self).items())
            theirs = ", ".join(f"{name} {state.get(name, 'not 0')}" for name in said)
            raise CheckpointError(
                f"the state is of an exchange with {theirs if found == WITH_DENSE else 'neither'}, "
                f"and this one has {mine}: give what it was saved with"
            )

    def __str__(self) -> str:
        return f"dense below {self.dense_below} and for {self.dense_steps} steps"


NEVER: Final = DensePolicy()
