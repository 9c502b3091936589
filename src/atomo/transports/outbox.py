"""The sends of a rank that are not complete yet, where other threads complete them."""

import threading
import time
from typing import final

from atomo.errors import DeadlineExpired, PeerLost

__all__ = ["Outbox", "PendingSend"]


@final
class PendingSend:
    """A message on its way to a rank."""

    def __init__(self, to: int) -> None:
        self.to = to
        self.over = threading.Event()
        self.lost = False
        """True if the message never arrives; valid once `over` is set."""

    def complete(self) -> None:
        """Completes the send: the bytes may change from now on."""
        self.over.set()

    def lose(self) -> None:
        """Fails the send, as its receiver is gone."""
        self.lost = True
        self.over.set()


@final
class Outbox:
    """The pending sends of one rank."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._lock = threading.Lock()
        self._pending: list[PendingSend] = []

    def add(self, to: int) -> PendingSend:
        """Adds a send to rank `to`."""
        send = PendingSend(to)
        with self._lock:
            self._pending = [pending for pending in self._pending if waits(pending)] + [send]
        return send

    def ignore_rank(self, to: int) -> None:
        """Drops the sends to a dead rank."""
        with self._lock:
            self._pending = [send for send in self._pending if send.to != to]

    def drain(self, timeout_s: float) -> None:
        """Waits until all sends are complete.

        Raises:
            DeadlineExpired: a rank does not receive a message sent to it.
            PeerLost: a rank is gone and will not receive.
        """
        end = time.monotonic() + timeout_s
        with self._lock:
            pending = [*self._pending]
        for send in pending:
            send.over.wait(max(0.0, end - time.monotonic()))
        for send in pending:
            if send.lost:
                raise PeerLost(send.to, "sending to it")
        if late := sorted({send.to for send in pending if not send.over.is_set()}):
            raise DeadlineExpired(
                f"rank {self._rank} waited {timeout_s:g} s for rank {late} to receive messages"
            )


def waits(send: PendingSend) -> bool:
    """True if a later drain must see this send: it is pending or was lost."""
    return send.lost or not send.over.is_set()
