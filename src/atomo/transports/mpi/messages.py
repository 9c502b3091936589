"""Messages on their way over MPI, in parts, and what MPI says of them in our words."""

from dataclasses import dataclass
from typing import Final, final

import numpy as np

from atomo.errors import PeerLost, TransportError
from atomo.transports.mpi.library import MPI
from atomo.wire import Bytes

__all__ = ["LAST", "MORE", "Incoming", "Outgoing", "Translated", "tells_of_death"]

LAST: Final = 7  # the tag of a message, or of the last part of one
MORE: Final = 8  # the tag of a part that others follow
# MPI_ERR_PROC_FAILED, and the same of a wait for any rank (Open MPI's fault-tolerance extension).
FAILED: Final = (75, 76)


@final
@dataclass(frozen=True)
class Outgoing:
    """A part of a message that has not left yet."""

    request: MPI.Request
    data: Bytes
    to: int


@final
class Incoming:
    """A message that is on its way, in parts."""

    def __init__(self, source: int) -> None:
        self.source, self.more, self.torn = source, True, False
        self._parts: list[Bytes] = []
        self._requests: list[MPI.Request] = []  # of the parts that are not known to be here

    def take(self, part: MPI.Message, status: MPI.Status) -> None:
        """Begins to receive the next part."""
        data = np.empty(status.Get_count(MPI.BYTE), np.uint8)
        self._parts.append(data)
        self._requests.append(part.Irecv([data, MPI.BYTE]))
        self.more = status.tag == MORE

    def is_whole(self) -> bool:
        """Whether all of it is here."""
        while self._requests and self._requests[-1].Test():
            self._requests.pop()
        return not self.more and not self._requests

    def data(self) -> Bytes:
        """All of it, once it is here."""
        return self._parts[0] if len(self._parts) == 1 else np.concatenate(self._parts)


def tells_of_death(error: MPI.Exception) -> bool:
    """Whether an error is that a rank is gone."""
    return error.Get_error_class() in FAILED


class Translated:
    """Turns MPI's errors into ours."""

    def __init__(self, peer: int | None, doing: str) -> None:
        self._peer, self._doing = peer, doing

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, MPI.Exception):
            if tells_of_death(error):
                raise PeerLost(-1 if self._peer is None else self._peer, self._doing) from error
            raise TransportError(f"MPI failed while {self._doing}: {error}") from error
