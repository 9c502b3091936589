"""States that workers send in the middle of a round of local steps, for checkpoints."""

from typing import Final, final

from torch import Tensor

from atomo.errors import FrameError, FrameFault
from atomo.exchange.parameter_server.members.members import Members
from atomo.exchange.state import read_state
from atomo.transports import Message

__all__ = ["RoundStates"]

FIRST: Final = 0


@final
class RoundStates:
    """Collector of the states of one round.

    All workers send states after the same steps, without a command: the master cannot reach a
    worker between two steps. A set is complete once each living worker has sent its state. Until
    the round closes the weights of the master stay the anchor, so a late set is a checkpoint too.
    """

    def __init__(self, members: Members) -> None:
        """Starts without an open round."""
        self._members, self._most = members, 0
        self._received: dict[int, list[dict[str, Tensor]]] = {}
        self._counts: dict[int, int] = {}

    def open(self, local_steps: int) -> None:
        """Opens a round of so many local steps; the states of the last round are dropped."""
        self._most = local_steps - 1
        self._received, self._counts = {}, {}

    def store(self, message: Message) -> None:
        """Stores the next state of a worker.

        Raises:
            FrameError: the state is damaged, or the worker sent more states than its round has
                steps.
        """
        worker = message.source
        count = self._counts.get(worker, 0) + 1
        if count > self._most:
            raise FrameError(
                f"worker {worker} sent {count} states in a round, in the middle of which there are "
                f"at most {self._most}",
                FrameFault.STRANGE,
            )
        self._received.setdefault(worker, []).append(read_state(message.data))
        self._counts[worker] = count

    def take(self) -> list[dict[str, Tensor]]:
        """Returns the oldest complete set, in rank order, and removes it; empty if none is."""
        living = self._members.living
        if not living or not all(self._received.get(worker) for worker in living):
            return []
        return [self._received[worker].pop(FIRST) for worker in living]
