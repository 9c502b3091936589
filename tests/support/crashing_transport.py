"""A transport whose rank dies after a number of messages."""

from atomo.errors import PeerLost
from atomo.transports import LocalTransport, Message, Transport
from atomo.wire import Bytes

__all__ = ["CrashingTransport"]


class CrashingTransport(Transport):
    """A transport whose rank dies after a number of messages sent or received."""

    def __init__(self, own: LocalTransport, messages_left: float) -> None:
        self._own, self.messages_left = own, messages_left
        self.rank, self.size, self.fault_tolerant = own.rank, own.size, own.fault_tolerant
        self.local_index, self.local_size = own.local_index, own.local_size
        self.sent_bytes = self.received_bytes = 0

    def breathe(self) -> None:
        self.messages_left -= 1
        if self.messages_left < 0:
            self._own.exit_rank(137)
            raise PeerLost(self.rank, "dying, itself")

    def send(self, to: int, data: Bytes, label: str) -> None:
        self.breathe()
        self._own.send(to, data, label)

    def receive(self, source: int | None, timeout_s: float, label: str) -> Message:
        self.breathe()
        return self._own.receive(source, timeout_s, label)

    def drain(self, timeout_s: float) -> None:
        self._own.drain(timeout_s)

    def ignore_rank(self, rank: int) -> None:
        self._own.ignore_rank(rank)

    def dup(self, timeout_s: float) -> Transport:
        raise NotImplementedError

    def abort(self, exit_code: int) -> None:
        self._own.abort(exit_code)
