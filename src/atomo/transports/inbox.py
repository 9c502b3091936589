"""The inbox of a rank, into which other threads deliver messages."""

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from atomo.errors import DeadlineExpired, PeerLost
from atomo.transports.outbox import PendingSend
from atomo.wire import Bytes

__all__ = ["Inbox", "InboxMessage"]


@dataclass(frozen=True)
class InboxMessage:
    """A message in an inbox."""

    source: int  # rank
    data: Bytes
    pending: PendingSend | None = None  # completed by the copy, where the memory is the sender's


@final
class Inbox:
    """The messages to one rank, in order of arrival. Its lock, `_changed`, guards all other
    fields.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._changed = threading.Condition()
        self._arriving: list[InboxMessage] = []  # in the memory of their senders
        self._messages: deque[InboxMessage] = deque()
        self._departed: dict[int, bool] = {}  # by rank: True if it announced its end
        self._waits = 0  # calls of `take` in progress
        self._open = True
        self._aborted: int | None = None

    def put(self, message: InboxMessage) -> None:
        """Delivers a message, or drops it after an abort."""
        with self._changed:
            if self._aborted is None:
                self._arriving.append(message)
            elif message.pending:
                message.pending.lose()
            self._changed.notify_all()

    def lose(self, source: int, announced: bool = False) -> None:
        """Records that a rank sends no further messages. A wait for any rank fails only if the rank
        did not announce its end.
        """
        with self._changed:
            self._departed.setdefault(source, announced)
            self._arriving = delivered_before_loss(self._arriving, source)
            self._changed.notify_all()

    def ignore_rank(self, source: int) -> None:
        """Drops the messages of a dead rank; no later wait for any rank fails because of it."""
        with self._changed:
            self._departed[source] = True
            self._arriving = [m for m in self._arriving if m.source != source]
            self._messages = deque(m for m in self._messages if m.source != source)

    def abort(self, exit_code: int) -> None:
        """Ends every wait, now and later, and drops all messages."""
        with self._changed:
            self._aborted = exit_code
            for message in self._arriving:
                if message.pending:
                    message.pending.lose()
            self._changed.notify_all()

    def close(self) -> None:
        """Ends `wait_until_asked` for good: this rank receives nothing more."""
        with self._changed:
            self._open = False
            self._changed.notify_all()

    def is_gone(self, source: int) -> bool:
        """True if a rank sends no further messages."""
        return source in self._departed

    def wait_until_asked(self) -> None:
        """Waits until this rank waits for a message, from any rank."""
        with self._changed:
            self._changed.wait_for(lambda: self._waits or not self._open)

    def take(self, source: int | None, timeout_s: float, label: str) -> InboxMessage:
        """Waits for the next message of a rank, or of any; arguments and errors as of
        `Transport.receive`.
        """
        end = time.monotonic() + timeout_s
        with self._changed:
            self._waits += 1
            self._changed.notify_all()
            try:
                while (message := self._next(source, label)) is None:
                    if not self._changed.wait(max(0.0, end - time.monotonic())):
                        raise DeadlineExpired(
                            f"rank {self._rank} waited {timeout_s:g} s for {label}; see --timeout"
                        )
            finally:
                self._waits -= 1
        return message

    def _next(self, source: int | None, label: str) -> InboxMessage | None:
        action = f"waiting for {label}"
        # Messages of all ranks: a sender that drains must not depend on the order of receives.
        self._messages.extend(map(received, self._arriving))
        self._arriving.clear()
        if self._aborted is not None:
            raise PeerLost(-1, f"{action} (the job was aborted with {self._aborted})")
        for place, message in enumerate(self._messages):
            if source in (None, message.source):
                del self._messages[place]
                return message
        if source in self._departed:
            raise PeerLost(source, action)
        if source is None:
            for rank, announced in self._departed.items():
                if not announced:
                    raise PeerLost(rank, action)
        return None


def delivered_before_loss(coming: Sequence[InboxMessage], source: int) -> list[InboxMessage]:
    """Returns the messages that remain once a rank is gone: of that rank, those before its first
    incomplete send.
    """
    delivered, is_cut = [], False
    for message in coming:
        complete = message.pending is None or message.pending.over.is_set()
        is_cut = is_cut or (message.source == source and not complete)
        if not (is_cut and message.source == source):
            delivered.append(message)
    return delivered


def received(message: InboxMessage) -> InboxMessage:
    """Copies a message that still lies in the sender's memory, and completes the send."""
    if message.pending is None:
        return message
    data = message.data.copy()
    message.pending.complete()
    return InboxMessage(message.source, data)
