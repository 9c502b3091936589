"""No memory: what a codec drops is gone. Right for unbiased codecs."""

from collections.abc import Mapping
from typing import ClassVar, final

from jaxtyping import Float
from torch import Tensor

from atomo.errors import CheckpointError
from atomo.memory.base import Memory

__all__ = ["Forget"]


@final
class Forget(Memory):
    """Keeps nothing."""

    id: ClassVar[str] = "none"
    keeps: ClassVar[bool] = False

    def compensate(self, key: str, gradient: Float[Tensor, "..."]) -> None:
        """Leaves the gradient alone."""

    def keep(self, key: str, unsent: Float[Tensor, "..."]) -> None:
        """Drops it."""

    def forget(self, key: str) -> None:
        """There is nothing to forget."""

    def take_back(self, key: str, sent: Float[Tensor, "..."]) -> None:
        """Drops it."""

    def state_dict(self) -> dict[str, Tensor]:
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        if state:
            raise CheckpointError(f"memory 'none' cannot hold a state of {len(state)} tensors")
