"""MPI messages in parts, and MPI errors as errors of this package."""

from dataclasses import dataclass
from typing import Final, final

import numpy as np

from atomo.errors import PeerLost, TransportError
from atomo.transports.mpi.library import MPI
from atomo.wire import Bytes

__all__ = ["LAST_PART", "MORE_PARTS", "Incoming", "Outgoing", "TranslatedErrors", "is_peer_failure"]

LAST_PART: Final = 7  # the tag of a whole message, or of its last part
MORE_PARTS: Final = 8  # the tag of a part that is not the last
# MPI_ERR_PROC_FAILED, and its form for a wait for any rank (Open MPI's fault tolerance).
FAILED: Final = (75, 76)


@final
@dataclass(frozen=True)
class Outgoing:
    """A part of a message with an incomplete send."""

    request: MPI.Request
    data: Bytes
    to: int


@final
class Incoming:
    """A message that arrives in parts."""

    def __init__(self, source: int) -> None:
        self.source, self.more, self.torn = source, True, False
        self._parts: list[Bytes] = []
        self._requests: list[MPI.Request] = []  # of parts that are not known to have arrived

    def take(self, part: MPI.Message, status: MPI.Status) -> None:
        """Starts to receive the next part."""
        data = np.empty(status.Get_count(MPI.BYTE), np.uint8)
        self._parts.append(data)
        self._requests.append(part.Irecv([data, MPI.BYTE]))
        self.more = status.tag == MORE_PARTS

    def is_whole(self) -> bool:
        """True if all parts have arrived."""
        while self._requests and self._requests[-1].Test():
            self._requests.pop()
        return not self.more and not self._requests

    def data(self) -> Bytes:
        """Returns the bytes of a message that has arrived."""
        return self._parts[0] if len(self._parts) == 1 else np.concatenate(self._parts)


def is_peer_failure(error: MPI.Exception) -> bool:
    """True if an error reports the death of a rank."""
    return error.Get_error_class() in FAILED


class TranslatedErrors:
    """A context that turns MPI errors into errors of this package."""

    def __init__(self, peer: int | None, action: str) -> None:
        self._peer, self._action = peer, action

    def __enter__(self) -> None:
        """Does nothing."""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, MPI.Exception):
            if is_peer_failure(error):
                raise PeerLost(-1 if self._peer is None else self._peer, self._action) from error
            raise TransportError(f"MPI failed while {self._action}: {error}") from error
