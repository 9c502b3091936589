"""The ranks of a job that take part, as a transport in which a death ends every wait.

What a rank sends belongs to an epoch: that of the last EPOCH frame before it, which each rank sends
to each other one as its first message after a verdict. Messages between two ranks keep their order,
so that what was sent for a step that was interrupted, and comes later, is told apart and dropped,
at no cost for any other message.
"""

import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Final, TypeVar, final

from atomo.communicators.crew.frames import bare
from atomo.errors import DeadlineExpired, PeerLost, TransportError
from atomo.transports import Message, Transport
from atomo.wire import Bytes, Kind, claimed_kind, read_header

__all__ = ["LEADER", "Circle", "Interrupted"]

LEADER: Final = 0  # whose death nobody survives
# Who waits for one that hangs waits for so long, or for the --timeout again, until rank 0 has come
# to the end of its own wait, and has it killed, be it on another host.
AGAIN_S: Final = 30.0
T = TypeVar("T")


class Interrupted(TransportError):
    """Somebody who shares the open step is gone, and a verdict is due."""


@final
class Circle(Transport):
    """Those who take part, numbered anew, in the order of their ranks."""

    def __init__(self, whole: Transport, members: Sequence[int], timeout_s: float) -> None:
        """The first epoch.

        Args:
            whole: connects all ranks; used by nobody else meanwhile.
            members: the ranks that take part.
            timeout_s: the longest wait for one of them.
        """
        self._whole, self._timeout_s = whole, timeout_s
        self.members = tuple(members)
        self.epoch = 0
        self.states: dict[int, deque[Bytes]] = defaultdict(deque)
        """By rank, what came of it for checkpoints, in any epoch: none is sent twice."""
        self.standings: dict[int, Bytes] = {}
        """By rank, those that came and were not asked for yet."""
        self.notes: list[str] = []
        """What a person should know, until somebody takes it out."""
        # Alike on all ranks, also on those that join: what they exchange depends on it.
        one_host = whole.local_size == whole.size
        self.local_index, self.local_size = whole.local_index, len(members) if one_host else 1
        self.fault_tolerant, self.revokes_waits = whole.fault_tolerant, True
        self._interrupted = False
        self._gone: set[int] = set()
        self._epochs: dict[int, int] = defaultdict(int)  # by rank, of what comes from it now
        self._frames: dict[int, deque[tuple[int, Bytes]]] = defaultdict(deque)

    @property
    def rank(self) -> int:  # type: ignore[override]  # changes with the members
        """This rank's place among the members."""
        return self.members.index(self._whole.rank)

    @property
    def size(self) -> int:  # type: ignore[override]
        """How many take part."""
        return len(self.members)

    @property
    def global_ranks(self) -> Sequence[int]:
        return self.members

    @property
    def sent_bytes(self) -> int:  # type: ignore[override]  # counted by the whole
        """Bytes that the whole has sent so far."""
        return self._whole.sent_bytes

    @property
    def received_bytes(self) -> int:  # type: ignore[override]
        """Bytes that the whole has received so far."""
        return self._whole.received_bytes

    @property
    def staging(self) -> str:
        return self._whole.staging

    def send(self, to: int, data: Bytes, what: str) -> None:
        if not self._interrupted:  # what is sent anew need not be sent before
            self.say(self.members[to], data, what)

    def receive(self, source: int | None, timeout_s: float, what: str) -> Message:
        if source is None:
            raise TransportError(f"{what}: a rank of a circle waits for one other at a time")
        return self._patiently(lambda wait_s: self._receive(source, wait_s, what), timeout_s)

    def _receive(self, source: int, timeout_s: float, what: str) -> Message:
        rank, end = self.members[source], time.monotonic() + timeout_s
        while (frame := self._next(rank)) is None:
            self._interrupted = self._interrupted or rank in self._gone
            if self._interrupted:
                raise Interrupted(f"somebody is gone; that was noticed while waiting for {what}")
            try:
                self.sort(self._whole.receive(None, max(0.0, end - time.monotonic()), what))
            except PeerLost as lost:
                self._miss(lost)
            except DeadlineExpired as late:
                raise DeadlineExpired(
                    f"rank {self._whole.rank} waited {timeout_s:g} s for {what}; see --timeout"
                ) from late
        return Message(source, frame)

    def drain(self, timeout_s: float) -> None:
        while True:
            try:
                return self._whole.drain(timeout_s)
            except PeerLost as lost:
                self._miss(lost)
                self._whole.ignore_rank(lost.rank)

    def dup(self, timeout_s: float) -> Transport:
        raise TransportError("a circle has no channels: nothing there would be of an epoch")

    def abort(self, exit_code: int) -> None:
        self._whole.abort(exit_code)

    def say(self, rank: int, data: Bytes, what: str) -> None:
        """Sends to a rank by its number in the job. Of a death its receivers hear."""
        try:
            self._whole.send(rank, data, what)
        except PeerLost as lost:
            if lost.rank != rank or self._ends(lost):
                raise

    def hear(self, rank: int, what: str) -> bool:
        """Waits for one message of a rank, by its number in the job, whoever else dies.

        Returns:
            Whether it came; not, where that rank is gone.
        """
        what = f"{what} of rank {rank}"
        try:
            self.sort(
                self._patiently(lambda s: self._whole.receive(rank, s, what), self._timeout_s)
            )
        except PeerLost as lost:
            if lost.rank != rank or self._ends(lost):
                raise
            return False
        return True

    def look(self) -> None:
        """Takes in all that has come by now, and who is gone."""
        while True:
            try:
                self.sort(self._whole.receive(None, 0.0, "what has come"))
            except DeadlineExpired:
                return
            except PeerLost as lost:
                self._miss(lost)
                self._whole.ignore_rank(lost.rank)

    def idle(self, what: str) -> Bytes:
        """The next message of rank 0, for which this rank waits as long as that lives, and leaves
        the core to others.

        Raises:
            PeerLost: it is gone.
        """
        return self._whole.wait_idle(LEADER, what).data

    def listen(self, what: str) -> Bytes:
        """Waits for the next message of rank 0 that is neither of a step nor of an epoch.

        Raises:
            PeerLost: it is gone.
        """
        while True:
            # Rank 0 waits for others meanwhile, and for the death of one that hangs.
            message = self._whole.receive(LEADER, 3 * self._timeout_s, f"{what} of rank {LEADER}")
            if claimed_kind(message.data) in (Kind.RECALL, Kind.VERDICT, Kind.STOP):
                return message.data
            self.sort(message)

    def sort(self, message: Message) -> None:
        """Takes in a message of any rank."""
        source, data = message.source, message.data
        match claimed_kind(data):
            case Kind.EPOCH:
                self._epochs[source] = read_header(data).step
            case Kind.STATE:
                self.states[source].append(data)
            case Kind.RECALL:
                self._interrupted = self._interrupted or read_header(data).step == self.epoch
            case Kind.STANDING:
                self.standings[source] = data
                self._interrupted = True
            case _:
                self._frames[source].append((self._epochs[source], data))

    def turn(self, members: Sequence[int]) -> None:
        """Begins the next epoch, with these members."""
        for rank in {*self.members} - {*members}:
            self._gone.add(rank)
            self._whole.ignore_rank(rank)
        self.members, self._interrupted = tuple(members), False
        self.enter(self.epoch + 1, members)

    def join(self, epoch: int, members: Sequence[int]) -> None:
        """Takes part from an epoch on, as one of these members."""
        self.epoch = epoch - 1
        self.turn(members)

    def is_gone(self, rank: int) -> bool:
        """Whether this rank has heard of the death of that one."""
        return rank in self._gone

    def enter(self, epoch: int, others: Sequence[int]) -> None:
        """Has these know that what comes from here on is of that epoch."""
        self.epoch = epoch
        for rank in others:
            if rank != self._whole.rank:
                self.say(rank, bare(Kind.EPOCH, epoch, self._whole.rank), "an epoch")

    def _patiently(self, wait: Callable[[float], T], timeout_s: float) -> T:
        """Waits, and once more where time is up, while rank 0 has whoever is stopped or stuck
        killed. Not whoever is silent: it may wait itself, for the one that hangs.

        Args:
            wait: for so many seconds.
            timeout_s: the first time.

        Raises:
            DeadlineExpired: nobody died of it.
        """
        try:
            return wait(timeout_s)
        except DeadlineExpired as late:
            if not self.fault_tolerant or (self._whole.rank == LEADER and not self._fences(late)):
                raise
            try:
                return wait(min(timeout_s, AGAIN_S))
            except DeadlineExpired:
                raise late from None

    def _fences(self, late: DeadlineExpired) -> bool:
        """Has those killed who are stopped or stuck; whether anybody could be asked to."""
        others = [one for one in self.members if one != LEADER]
        asked = [self._whole.fence(one, if_stuck=True) for one in others]
        self.notes.append(f"{late}; who is stopped or stuck is killed")
        return any(asked)

    def _next(self, rank: int) -> Bytes | None:
        """The next frame of a rank that is of this epoch, if one is there."""
        frames = self._frames[rank]
        while frames and frames[0][0] < self.epoch:
            frames.popleft()
        return frames.popleft()[1] if frames and frames[0][0] == self.epoch else None

    def _miss(self, lost: PeerLost) -> None:
        """Takes in a death. Raises it where it ends the job."""
        if self._ends(lost):
            raise lost
        self._gone.add(lost.rank)
        if lost.rank in self.members:
            self._interrupted = True
        else:
            self._whole.ignore_rank(lost.rank)  # it waited, or takes part no more

    def _ends(self, lost: PeerLost) -> bool:
        """Whether a death ends the job."""
        fatal = lost.rank in (LEADER, self._whole.rank) or lost.rank < 0
        return fatal or not self.fault_tolerant
