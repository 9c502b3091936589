"""Receiver of the workers' frames: gradients, hashes and broken chains."""

import math
from collections.abc import Callable, Sequence
from typing import final

from atomo.errors import FrameError, FrameFault
from atomo.exchange.parameter_server.frames.checks import check_frame
from atomo.exchange.parameter_server.frames.commands import CommandSender
from atomo.exchange.parameter_server.frames.refusals import RefusedGradientTail
from atomo.exchange.parameter_server.members.assignments import Assignments
from atomo.exchange.parameter_server.members.members import Members
from atomo.exchange.parameter_server.weight_sync import WeightSync
from atomo.fusion import Bucket
from atomo.transports import Message
from atomo.wire import Header, Kind, read_header

__all__ = ["FrameReceiver"]


@final
class FrameReceiver:
    """Receiver of frames, which handles events outside a step: deaths, hashes, broken chains."""

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
        """Starts without received frames.

        Args:
            members: senders.
            assignments: of steps to workers.
            commands: sender to workers.
            weight_sync: queries hashes.
            refused_tail: recognises the rest of a refused gradient.
            remove_dead: removes dead workers from all parts that wait for them.
            refuse: refuses a frame of a worker.
        """
        self._members, self._assignments, self._commands = members, assignments, commands
        self._weight_sync, self._refused_tail = weight_sync, refused_tail
        self._remove_dead, self._refuse = remove_dead, refuse

    def any(
        self, pending: Sequence[int], label: str, max_wait_s: float = math.inf
    ) -> tuple[Message, Header] | None:
        """Returns the next message and its header; None after a hash, a refusal or a death."""
        message = self._members.receive(pending, label, max_wait_s)
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
        """Returns the header of an expected message; None if the message is handled or dropped."""
        worker = message.source
        try:
            header = read_header(message.data)
        except FrameError:
            if self._refused_tail.contains_unreadable(worker):
                return None
            self._refused_tail.count(worker)
            raise
        if header.kind is Kind.HASH:
            self._on_hash(message, header)
            return None
        if self._refused_tail.contains(worker, header):
            return None
        if header.kind is not Kind.STATE:
            self._refused_tail.count(worker)
        return header

    def gradient(
        self,
        pending: Sequence[int],
        label: str,
        step: int,
        buckets: Sequence[Bucket],
        *,
        closed: bool,
        takes_states: bool = False,
        max_wait_s: float = math.inf,
    ) -> tuple[Message, Header] | None:
        """Returns the next frame of a gradient and its header; None after another event.

        Args:
            pending: workers that owe a gradient.
            label: description of the frames, for errors.
            step: the newest step.
            buckets: of that step; empty if the frames are never decoded.
            closed: True if that step is closed.
            takes_states: True if a worker may send its state in the middle of a round.
            max_wait_s: longest wait of this call.
        """
        received = self.any(pending, label, max_wait_s)
        if received is None:
            return None
        message, header = received
        due_step = self._assignments.outstanding.get(message.source)
        try:
            if header.kind is Kind.BROKEN:
                self._handle_broken(message.source, closed=closed)
                return None
            known = buckets if header.step == step else ()
            check_frame(header, message.source, due_step, known, takes_states=takes_states)
        except FrameError as error:
            self._refuse(message.source, error)
            return None
        return message, header

    def _on_hash(self, message: Message, header: Header) -> None:
        """Passes the answer to a hash query to the weight sync."""
        if header.worker != message.source:
            raise FrameError(
                f"rank {message.source} sent the hash of worker {header.worker}", FrameFault.STRANGE
            )
        self._weight_sync.on_hash(message.source, message.data)

    def _handle_broken(self, worker: int, *, closed: bool) -> None:
        """Sends the missing frames to a worker that a broken chain did not reach, or cancels its
        closed step.
        """
        if worker not in self._assignments.outstanding:
            raise FrameError(
                f"rank {worker} sent a BROKEN, and owes no gradient", FrameFault.STRANGE
            )
        self._refused_tail.end(worker)
        if closed:
            self._commands.cancel(worker)
        else:
            self._commands.repeat(worker)
