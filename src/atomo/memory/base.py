"""The memory contract: what a worker keeps back when its codec drops part of a gradient.

Law, checked in `tests/memory/test_conservation.py`: what is sent plus what is kept equals what came
in plus what was kept. A memory is keyed by parameter name, so that its state survives a resume,
another division into buckets, and another number of workers.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

__all__ = ["Memory"]


class Memory(ABC):
    """Keeps what was not sent. Abstract; subclasses are final."""

    id: ClassVar[str]
    """Its name on the command line."""
    keeps: ClassVar[bool]
    """False where nothing is ever kept, so that nobody computes what it would be given."""

    @abstractmethod
    def compensate(self, key: str, gradient: Float[Tensor, "..."]) -> None:
        """Adds what was kept of parameter `key` to its new gradient, in place."""

    @abstractmethod
    def keep(self, key: str, unsent: Float[Tensor, "..."]) -> None:
        """Records what is left of the compensated gradient once what was sent is taken off it.

        The difference is the caller's to compute: it can do so in the buffer that it already owns.
        """

    @abstractmethod
    def forget(self, key: str) -> None:
        """Records that nothing of the compensated gradient is left: all of it was sent."""

    @abstractmethod
    def take_back(self, key: str, sent: Float[Tensor, "..."]) -> None:
        """Records that what was sent never counted: it is kept instead."""

    @abstractmethod
    def state_dict(self) -> dict[str, Tensor]:
        """What a checkpoint must hold for training to resume exactly, by parameter name."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Replaces what is kept by what `state_dict` returned."""
