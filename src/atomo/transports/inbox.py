"""What has arrived at a rank, where it arrives by other threads than the one that receives."""

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from atomo.errors import DeadlineExpired, PeerLost
from atomo.transports.leaving import Leaving
from atomo.wire import Bytes

__all__ = ["Inbox", "Parcel"]


@dataclass(frozen=True)
class Parcel:
    """Bytes that arrived."""

    source: int  # rank
    data: Bytes
    leaving: Leaving | None = None  # whom to tell once they are copied, if they are the sender's


@final
class Inbox:
    """The parcels of one rank, in the order in which they came."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._changed = threading.Condition()
        self._coming: list[Parcel] = []  # put, and still the sender's
        self._parcels: deque[Parcel] = deque()
        self._gone: dict[int, bool] = {}  # rank: whether it said goodbye
        self._waits = 0  # under way
        self._open = True
        self._aborted: int | None = None

    def put(self, parcel: Parcel) -> None:
        """One more has come; it is lost where the job is at its end."""
        with self._changed:
            if self._aborted is None:
                self._coming.append(parcel)
            elif parcel.leaving:
                parcel.leaving.lose()
            self._changed.notify_all()

    def lose(self, source: int, goodbye: bool = False) -> None:
        """Nothing more comes from a rank. Who waits for any misses none that said goodbye."""
        with self._changed:
            self._gone.setdefault(source, goodbye)
            self._coming = unbroken(self._coming, source)
            self._changed.notify_all()

    def forget(self, source: int) -> None:
        """Nobody misses a rank that is gone, or what it sent, from now on."""
        with self._changed:
            self._gone[source] = True
            self._coming = [one for one in self._coming if one.source != source]
            self._parcels = deque(one for one in self._parcels if one.source != source)

    def abort(self, exit_code: int) -> None:
        """Ends every wait, now and later; what is here is lost."""
        with self._changed:
            self._aborted = exit_code
            for parcel in self._coming:
                if parcel.leaving:
                    parcel.leaving.lose()
            self._changed.notify_all()

    def close(self) -> None:
        """Nobody receives from now on, so that nothing is kept waiting."""
        with self._changed:
            self._open = False
            self._changed.notify_all()

    def is_gone(self, source: int) -> bool:
        """Whether nothing more comes from a rank."""
        return source in self._gone

    def wait_until_asked(self) -> None:
        """Waits until somebody waits for something, whoever it is to come from."""
        with self._changed:
            self._changed.wait_for(lambda: self._waits or not self._open)

    def take(self, source: int | None, timeout_s: float, what: str) -> Parcel:
        """The next parcel of a rank, or of any; arguments and errors of `Transport.receive`."""
        end = time.monotonic() + timeout_s
        with self._changed:
            self._waits += 1
            self._changed.notify_all()
            try:
                while (parcel := self._next(source, what)) is None:
                    if not self._changed.wait(max(0.0, end - time.monotonic())):
                        raise DeadlineExpired(
                            f"rank {self._rank} waited {timeout_s:g} s for {what}; see --timeout"
                        )
            finally:
                self._waits -= 1
        return parcel

    def _next(self, source: int | None, what: str) -> Parcel | None:
        doing = f"waiting for {what}"
        self._parcels.extend(map(received, self._coming))  # all, whoever is waited for
        self._coming.clear()
        if self._aborted is not None:
            raise PeerLost(-1, f"{doing} (the job was aborted with {self._aborted})")
        for place, parcel in enumerate(self._parcels):
            if source in (None, parcel.source):
                del self._parcels[place]
                return parcel
        if source in self._gone:
            raise PeerLost(source, doing)
        if source is None:
            for rank, goodbye in self._gone.items():
                if not goodbye:
                    raise PeerLost(rank, doing)
        return None


def unbroken(coming: Sequence[Parcel], source: int) -> list[Parcel]:
    """What still comes once a rank is gone: of its own, what had left before the first that had
    not.
    """
    kept, cut = [], False
    for parcel in coming:
        there = parcel.leaving is None or parcel.leaving.over.is_set()
        cut = cut or (parcel.source == source and not there)
        if not (cut and parcel.source == source):
            kept.append(parcel)
    return kept


def received(parcel: Parcel) -> Parcel:
    """The same with bytes of its own, which the sender then has no more to keep."""
    if parcel.leaving is None:
        return parcel
    data = parcel.data.copy()
    parcel.leaving.left()
    return Parcel(parcel.source, data)
