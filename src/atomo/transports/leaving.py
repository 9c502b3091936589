"""What a rank has sent and nobody has taken yet, where taking happens in other threads."""

import threading
import time
from typing import final

from atomo.errors import DeadlineExpired, PeerLost

__all__ = ["Leaving", "Outbox"]


@final
class Leaving:
    """A message on its way to a rank."""

    def __init__(self, to: int) -> None:
        self.to = to
        self.over = threading.Event()
        self.lost = False
        """Whether it never arrives; known once it is over."""

    def left(self) -> None:
        """It has left, and its bytes may change."""
        self.over.set()

    def lose(self) -> None:
        """The rank that it goes to is gone."""
        self.lost = True
        self.over.set()


@final
class Outbox:
    """The messages of one rank that are on their way."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._lock = threading.Lock()
        self._leaving: list[Leaving] = []

    def add(self, to: int) -> Leaving:
        """Notes one more, to rank `to`."""
        one = Leaving(to)
        with self._lock:
            self._leaving = [other for other in self._leaving if waits(other)] + [one]
        return one

    def forget(self, to: int) -> None:
        """Nobody waits any more for what goes to a rank that is gone."""
        with self._lock:
            self._leaving = [one for one in self._leaving if one.to != to]

    def drain(self, timeout_s: float) -> None:
        """Waits until all have left.

        Raises:
            DeadlineExpired: somebody does not take what was sent.
            PeerLost: somebody is gone, and never will.
        """
        end = time.monotonic() + timeout_s
        with self._lock:
            leaving = [*self._leaving]
        for one in leaving:
            one.over.wait(max(0.0, end - time.monotonic()))
        for one in leaving:
            if one.lost:
                raise PeerLost(one.to, "sending to it")
        if late := sorted({one.to for one in leaving if not one.over.is_set()}):
            raise DeadlineExpired(
                f"rank {self._rank} waited {timeout_s:g} s for rank {late} to take what was sent"
            )


def waits(one: Leaving) -> bool:
    """Whether a drain has yet to hear of it: it is on its way, or was lost."""
    return one.lost or not one.over.is_set()
