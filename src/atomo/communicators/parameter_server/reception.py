"""What the master hears of workers: frames of gradients, and what is said beside them."""

from collections.abc import Callable, Sequence
from typing import final

from atomo.communicators.parameter_server.assignments import Assignments
from atomo.communicators.parameter_server.checks import check_frame
from atomo.communicators.parameter_server.down import Down
from atomo.communicators.parameter_server.members import Members
from atomo.communicators.parameter_server.orders import Orders
from atomo.errors import FrameError
from atomo.fusion import Bucket
from atomo.transports import Message
from atomo.wire import Header, Kind, read_header

__all__ = ["Reception"]


@final
class Reception:
    """Receives, and sees to what needs no step: deaths, hashes, and workers that were cut off."""

    def __init__(
        self,
        members: Members,
        assignments: Assignments,
        orders: Orders,
        down: Down,
        bury: Callable[[], None],
    ) -> None:
        """Nothing is received yet.

        Args:
            members: who may say something.
            assignments: who owes what.
            orders: what is told to workers.
            down: the way down, which asks for hashes.
            bury: takes those who died out of all that is waited for.
        """
        self._members, self._assignments, self._orders = members, assignments, orders
        self._down, self._bury = down, bury

    def any(self, owing: Sequence[int], what: str) -> tuple[Message, Header] | None:
        """The next message but for hashes; None: it was one, or somebody died instead."""
        message = self._members.receive(owing, what)
        self._bury()
        if message is None:
            return None
        header = read_header(message.data)
        return None if self._is_hash(message, header) else (message, header)

    def gradient(
        self, owing: Sequence[int], what: str, step: int, buckets: Sequence[Bucket], *, closed: bool
    ) -> tuple[Message, Header] | None:
        """The next frame of a gradient; None: there was something else to see to.

        Args:
            owing: who has to send one.
            what: what is waited for; errors say it.
            step: the last that was opened.
            buckets: of that step; none, where what comes is never decoded.
            closed: whether it is closed.
        """
        received = self.any(owing, what)
        if received is None:
            return None
        message, header = received
        if header.kind is Kind.BROKEN:
            self._see_to(message.source, closed=closed)
            return None
        given = self._assignments.owed.get(message.source)
        check_frame(header, message.source, given, buckets if header.step == step else ())
        return message, header

    def _is_hash(self, message: Message, header: Header) -> bool:
        """Whether it was an answer to what the way down had asked."""
        if header.kind is not Kind.HASH:
            return False
        if header.worker != message.source:
            raise FrameError(f"rank {message.source} sent the hash of worker {header.worker}")
        self._down.heard(message.source, message.data)
        return True

    def _see_to(self, worker: int, *, closed: bool) -> None:
        """To a worker behind one that died, which could not follow its order."""
        if worker not in self._assignments.owed:
            raise FrameError(f"rank {worker} sent a BROKEN, and was given nothing")
        if closed:
            self._orders.excuse(worker)
        else:
            self._orders.repeat(worker)
