"""Gradients that wait for the last one of their step, where encoding must know all of them."""

from typing import Generic, TypeVar, final

__all__ = ["HeldGradients"]

T = TypeVar("T")


@final
class HeldGradients(Generic[T]):
    """Queue before the first stage.

    A memory that clips needs the norm of the whole gradient, and runs agree on all scales of a
    step in one round: then nothing is encoded before the last bucket is there.
    """

    def __init__(self, holds: bool = False) -> None:
        """Makes an empty queue. `holds`: True if items wait for `release`."""
        self.holds = holds
        self._items: list[T] = []

    def push(self, item: T) -> list[T]:
        """Returns the items that may be encoded now: this one, or none where items are held."""
        if not self.holds:
            return [item]
        self._items.append(item)
        return []

    def release(self) -> list[T]:
        """Returns the held items, in their order: the gradient is whole."""
        items, self._items = self._items, []
        return items
