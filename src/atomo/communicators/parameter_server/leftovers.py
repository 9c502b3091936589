"""What still comes of a gradient that was refused: its worker learns of that when it is done."""

from typing import final

from atomo.wire import Header, Kind

__all__ = ["Leftovers"]

OF_GRADIENTS = (Kind.GRADIENT, Kind.SCALES, Kind.REPORT)


@final
class Leftovers:
    """Tells the rest of a refused gradient from what its worker sends next.

    Messages of a worker come in the order in which they were sent. So what has the refused step, or
    one before it, is of the rest until a message has another; what cannot be read is, as long as
    the gradient can have more messages.
    """

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}  # messages of the gradient that a worker is sending
        self._refused: dict[int, int] = {}  # by worker, the step
        self._rest: dict[int, int] = {}  # by worker, messages that may still come

    def see(self, worker: int) -> None:
        """A message of a gradient."""
        self._seen[worker] = self._seen.get(worker, 0) + 1

    def is_first(self, worker: int) -> bool:
        """Whether no more than one message of its gradient was seen."""
        return self._seen.get(worker, 0) < 2

    def end(self, worker: int) -> None:
        """The gradient is whole, or its worker is gone: what comes next is of another."""
        for record in (self._seen, self._refused, self._rest):
            record.pop(worker, None)

    def refuse(self, worker: int, step: int, messages: int) -> None:
        """A gradient of so many messages in all is refused, by those of it that were seen."""
        self._refused[worker] = step
        self._rest[worker] = max(0, messages - self._seen.pop(worker, 0))

    def has_unreadable(self, worker: int) -> bool:
        """Whether a message that cannot be read is of the rest."""
        if not self._rest.get(worker):
            return False
        self._rest[worker] -= 1
        return True

    def has(self, worker: int, header: Header) -> bool:
        """Whether a message is of the rest."""
        step = self._refused.get(worker)
        if step is None:
            return False
        of_it = header.kind in OF_GRADIENTS and header.step <= step
        if not of_it or (header.kind is Kind.REPORT and header.step == step):
            self.end(worker)
        elif self._rest[worker]:
            self._rest[worker] -= 1
        return of_it
