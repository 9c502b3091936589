"""Registry of the hook or optimizer that averages the gradients of a parameter.

Two averages of one gradient raise no error by themselves: each has a memory of its own, and the
second compresses the average of the first.
"""

import gc
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, final
from weakref import WeakKeyDictionary, ref

from torch import Tensor

from atomo.errors import ConfigError

__all__ = ["HOOKS", "OPTIMIZERS", "Owners"]


@final
@dataclass(frozen=True)
class Owners:
    """The existing models with a hook, or the existing wrapped optimizers."""

    label: str
    """The name of the function that makes them."""
    parameters: WeakKeyDictionary[object, Sequence[ref[Tensor]]]
    """The parameters of each owner."""

    def add(self, owner: object, parameters: Iterable[Tensor]) -> None:
        """Records that `owner` averages gradients, for as long as it exists."""
        self.parameters[owner] = [ref(parameter) for parameter in parameters]

    def check_free(self, parameters: Iterable[Tensor]) -> None:
        """Raises ConfigError if one of these averages the gradient of a parameter already."""
        ids = {id(parameter) for parameter in parameters}
        if not self._count(ids):
            return
        gc.collect()  # a model or an optimizer without references may be in a reference cycle
        if count := self._count(ids):
            raise ConfigError(
                f"{self.label} averages the gradients of {count} of the {len(ids)} parameters "
                "already, and a second average would compress the first: use ddp_hook or "
                "wrap_optimizer, once; delete a model or an optimizer that is no longer used"
            )

    def _count(self, ids: set[int]) -> int:
        """Returns how many of these parameters have an owner."""
        references = [own for owned in list(self.parameters.values()) for own in owned]
        return len(ids & {id(own()) for own in references})


HOOKS: Final = Owners("ddp_hook", WeakKeyDictionary())
"""Models in DistributedDataParallel. A framework may wrap a model again, with a new hook, so hooks
do not exclude each other here."""
OPTIMIZERS: Final = Owners("wrap_optimizer", WeakKeyDictionary())
