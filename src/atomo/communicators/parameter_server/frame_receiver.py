"""What the master hears of workers: frames of gradients, and what is said beside them."""

import math
from collections.abc import Callable, Sequence
from typing import final

from atomo.communicators.parameter_server.assignments import Assignments
from atomo.communicators.parameter_server.checks import check_frame
from atomo.communicators.parameter_server.commands import CommandSender
from atomo.communicators.parameter_server.members import Members
from atomo.communicators.parameter_server.refusals import RefusedGradientTail
from atomo.communicators.parameter_server.weight_sync import WeightSync
from atomo.errors import FrameError, FrameFault
from atomo.fusion import Bucket
from atomo.transports import Message
from atomo.wire import Header, Kind, read_header

__all__ = ["FrameReceiver"]


@final
class FrameReceiver:
    """Receives, and sees to what needs no step: deaths, hashes, and workers that were cut off."""

    def __init__(
        self,
        members: Members,
        assignments: Assignments,
        commands: CommandSender,
        weight_sync: WeightSync,
        refused_tail: RefusedGradientTail,
        remove_dead: Callable[[], None],
        refuse: Callable[[int, FrameError], None],
    ) -> None:
        """Nothing is received yet.

        Args:
            members: who may say something.
            assignments: who owes what.
            commands: sends to workers.
            weight_sync: asks for hashes.
            refused_tail: the rest of refused gradients.
            remove_dead: removes dead workers from all that is waited for.
            refuse: sees to a worker that sent what it should not.
        """
        self._members, self._assignments, self._commands = members, assignments, commands
        self._weight_sync, self._refused_tail = weight_sync, refused_tail
        self._remove_dead, self._refuse = remove_dead, refuse

    def any(
        self, owing: Sequence[int], what: str, most_s: float = math.inf
    ) -> tuple[Message, Header] | None:
        """The next message but for hashes; None: it was one, or was refused, or somebody died."""
        message = self._members.receive(owing, what, most_s)
        self._remove_dead()
        if message is None:
            return None
        try:
            header = self._read(message)
        except FrameError as error:
            self._refuse(message.source, error)
            return None
        return None if header is None else (message, header)

    def _read(self, message: Message) -> Header | None:
        """The header of a message that somebody waits for; None: nobody does."""
        worker = message.source
        try:
            header = read_header(message.data)
        except FrameError:
            if self._refused_tail.has_unreadable(worker):
                return None
            self._refused_tail.see(worker)
            raise
        if header.kind is Kind.HASH:
            self._on_hash(message, header)
            return None
        if self._refused_tail.has(worker, header):
            return None
        if header.kind is not Kind.STATE:
            self._refused_tail.see(worker)
        return header

    def gradient(
        self,
        owing: Sequence[int],
        what: str,
        step: int,
        buckets: Sequence[Bucket],
        *,
        closed: bool,
        most_s: float = math.inf,
    ) -> tuple[Message, Header] | None:
        """The next frame of a gradient; None: there was something else to see to.

        Args:
            owing: who has to send one.
            what: what is waited for; errors say it.
            step: the last that was opened.
            buckets: of that step; none, where what comes is never decoded.
            closed: whether it is closed.
            most_s: how long to wait now.
        """
        received = self.any(owing, what, most_s)
        if received is None:
            return None
        message, header = received
        given = self._assignments.owed.get(message.source)
        try:
            if header.kind is Kind.BROKEN:
                self._handle_broken(message.source, closed=closed)
                return None
            check_frame(header, message.source, given, buckets if header.step == step else ())
        except FrameError as error:
            self._refuse(message.source, error)
            return None
        return message, header

    def _on_hash(self, message: Message, header: Header) -> None:
        """An answer to what the way down had asked."""
        if header.worker != message.source:
            raise FrameError(
                f"rank {message.source} sent the hash of worker {header.worker}", FrameFault.STRANGE
            )
        self._weight_sync.on_hash(message.source, message.data)

    def _handle_broken(self, worker: int, *, closed: bool) -> None:
        """To a worker behind one that died, which could not follow its order."""
        if worker not in self._assignments.owed:
            raise FrameError(
                f"rank {worker} sent a BROKEN, and was given nothing", FrameFault.STRANGE
            )
        self._refused_tail.end(worker)
        if closed:
            self._commands.cancel(worker)
        else:
            self._commands.repeat(worker)
