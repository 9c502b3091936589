"""A transport among the members of an elastic group, in which a death ends every wait.

Every message belongs to an epoch, which begins with each verdict. The first message that a rank
sends to each other rank after a verdict is an EPOCH frame; all later messages belong to that epoch.
Messages between two ranks stay in order, so a late message of an interrupted step is recognized and
dropped, and other messages carry no epoch number.
"""

import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Final, TypeVar, final

from atomo.errors import DeadlineExpired, PeerLost, TransportError
from atomo.exchange.elastic.frames import control_frame
from atomo.transports import Message, Transport
from atomo.wire import Bytes, Kind, claimed_kind, read_header

__all__ = ["LEADER", "EpochTransport", "StepInterrupted"]

LEADER: Final = 0  # its death ends the job
# A rank that waits for a hung rank waits once more, for this long or for the --timeout: rank 0 must
# reach the end of its own wait and have the hung rank killed, perhaps on another host.
SECOND_WAIT_S: Final = 30.0
T = TypeVar("T")


class StepInterrupted(TransportError):
    """A member of the open step is dead, and a verdict is due."""


@final
class EpochTransport(Transport):
    """A transport among the members, numbered in the order of their ranks."""

    def __init__(self, whole: Transport, members: Sequence[int], timeout_s: float) -> None:
        """Creates the transport in its first epoch.

        Args:
            whole: connects all ranks of the job; used by this transport alone meanwhile.
            members: the ranks that take part.
            timeout_s: the longest wait for a member.
        """
        self._whole, self._timeout_s = whole, timeout_s
        self.members = tuple(members)
        self.epoch = 0
        self.states: dict[int, deque[Bytes]] = defaultdict(deque)
        """STATE frames by rank, for checkpoints. They keep their value across epochs, since no rank
        sends a state twice."""
        self.progress: dict[int, Bytes] = {}
        """STANDING frames by rank that arrived before they were asked for."""
        self.notes: list[str] = []
        """Messages to the user, until the caller takes them."""
        # Equal on all ranks, also on those that join: the exchange depends on it.
        one_host = whole.local_size == whole.size
        self.local_index, self.local_size = whole.local_index, len(members) if one_host else 1
        self.fault_tolerant, self.revokes_waits = whole.fault_tolerant, True
        self._is_interrupted = False
        self._dead: set[int] = set()
        self._epochs: dict[int, int] = defaultdict(int)  # by rank, the epoch of its next messages
        self._frames: dict[int, deque[tuple[int, Bytes]]] = defaultdict(deque)

    @property
    def rank(self) -> int:  # type: ignore[override]  # changes with the members
        """Index of this rank among the members."""
        return self.members.index(self._whole.rank)

    @property
    def size(self) -> int:  # type: ignore[override]
        """Number of members."""
        return len(self.members)

    @property
    def global_ranks(self) -> Sequence[int]:
        return self.members

    @property
    def sent_bytes(self) -> int:  # type: ignore[override]  # counted by the whole
        """Bytes that the whole transport has sent so far."""
        return self._whole.sent_bytes

    @property
    def received_bytes(self) -> int:  # type: ignore[override]
        """Bytes that the whole transport has received so far."""
        return self._whole.received_bytes

    @property
    def staging(self) -> str:
        return self._whole.staging

    def send(self, to: int, data: Bytes, label: str) -> None:
        if not self._is_interrupted:  # the next attempt sends it again
            self.send_to(self.members[to], data, label)

    def receive(self, source: int | None, timeout_s: float, label: str) -> Message:
        if source is None:
            raise TransportError(
                f"{label}: a member of an elastic group waits for one rank at a time"
            )
        return self._wait_twice(lambda wait_s: self._receive(source, wait_s, label), timeout_s)

    def _receive(self, source: int, timeout_s: float, label: str) -> Message:
        rank, end = self.members[source], time.monotonic() + timeout_s
        while (frame := self._next(rank)) is None:
            self._is_interrupted = self._is_interrupted or rank in self._dead
            if self._is_interrupted:
                raise StepInterrupted(f"a rank is gone; detected while waiting for {label}")
            try:
                self.dispatch(self._whole.receive(None, max(0.0, end - time.monotonic()), label))
            except PeerLost as lost:
                self._record_death(lost)
            except DeadlineExpired as late:
                raise DeadlineExpired(
                    f"rank {self._whole.rank} waited {timeout_s:g} s for {label}; see --timeout"
                ) from late
        return Message(source, frame)

    def drain(self, timeout_s: float) -> None:
        while True:
            try:
                return self._whole.drain(timeout_s)
            except PeerLost as lost:
                self._record_death(lost)
                self._whole.ignore_rank(lost.rank)

    def dup(self, timeout_s: float) -> Transport:
        raise TransportError("an elastic transport has no duplicates: they would have no epochs")

    def abort(self, exit_code: int) -> None:
        self._whole.abort(exit_code)

    def send_to(self, rank: int, data: Bytes, label: str) -> None:
        """Sends to a job rank. If that rank is dead, nothing happens: its receivers report the
        death.
        """
        try:
            self._whole.send(rank, data, label)
        except PeerLost as lost:
            if lost.rank != rank or self._is_fatal(lost):
                raise

    def receive_from(self, rank: int, label: str) -> bool:
        """Waits for one message of a job rank, even if other ranks die.

        Returns:
            False if the rank is dead, so that no message can arrive.
        """
        label = f"{label} of rank {rank}"
        try:
            self.dispatch(
                self._wait_twice(lambda s: self._whole.receive(rank, s, label), self._timeout_s)
            )
        except PeerLost as lost:
            if lost.rank != rank or self._is_fatal(lost):
                raise
            return False
        return True

    def poll(self) -> None:
        """Processes all messages and deaths that have arrived, without waiting."""
        while True:
            try:
                self.dispatch(self._whole.receive(None, 0.0, "arrived messages"))
            except DeadlineExpired:
                return
            except PeerLost as lost:
                self._record_death(lost)
                self._whole.ignore_rank(lost.rank)

    def wait_for_leader(self, label: str) -> Bytes:
        """Returns the next message of rank 0; waits without a deadline and leaves the core to other
        processes.

        Raises:
            PeerLost: rank 0 is dead.
        """
        return self._whole.wait_idle(LEADER, label).data

    def receive_control(self, label: str) -> Bytes:
        """Waits for the next RECALL, VERDICT or STOP of rank 0.

        Raises:
            PeerLost: rank 0 is dead.
        """
        while True:
            # Rank 0 waits for other ranks meanwhile, and for the death of a hung one.
            message = self._whole.receive(LEADER, 3 * self._timeout_s, f"{label} of rank {LEADER}")
            if claimed_kind(message.data) in (Kind.RECALL, Kind.VERDICT, Kind.STOP):
                return message.data
            self.dispatch(message)

    def dispatch(self, message: Message) -> None:
        """Files a message of any rank by its kind."""
        source, data = message.source, message.data
        match claimed_kind(data):
            case Kind.EPOCH:
                self._epochs[source] = read_header(data).step
            case Kind.STATE:
                self.states[source].append(data)
            case Kind.RECALL:
                self._is_interrupted = self._is_interrupted or read_header(data).step == self.epoch
            case Kind.STANDING:
                self.progress[source] = data
                self._is_interrupted = True
            case _:
                self._frames[source].append((self._epochs[source], data))

    def advance_epoch(self, members: Sequence[int]) -> None:
        """Begins the next epoch with these members."""
        for rank in {*self.members} - {*members}:
            self._dead.add(rank)
            self._whole.ignore_rank(rank)
        self.members, self._is_interrupted = tuple(members), False
        self.announce_epoch(self.epoch + 1, members)

    def join_epoch(self, epoch: int, members: Sequence[int]) -> None:
        """Joins the group in a given epoch, as one of these members."""
        self.epoch = epoch - 1
        self.advance_epoch(members)

    def is_dead(self, rank: int) -> bool:
        """True if this rank knows that the other one is dead."""
        return rank in self._dead

    def announce_epoch(self, epoch: int, ranks: Sequence[int]) -> None:
        """Announces to other ranks that all later messages belong to this epoch."""
        self.epoch = epoch
        for rank in ranks:
            if rank != self._whole.rank:
                self.send_to(rank, control_frame(Kind.EPOCH, epoch, self._whole.rank), "an epoch")

    def _wait_twice(self, wait: Callable[[float], T], timeout_s: float) -> T:
        """Waits, and once more after a timeout, while rank 0 has stopped and stuck ranks killed. A
        silent rank is not killed for its silence: it may itself wait for the rank that hangs.

        Args:
            wait: one wait of the given seconds.
            timeout_s: length of the first wait.

        Raises:
            DeadlineExpired: no message arrived in the second wait either.
        """
        try:
            return wait(timeout_s)
        except DeadlineExpired as late:
            if not self.fault_tolerant or (
                self._whole.rank == LEADER and not self._fence_stuck(late)
            ):
                raise
            try:
                return wait(min(timeout_s, SECOND_WAIT_S))
            except DeadlineExpired:
                raise late from None

    def _fence_stuck(self, late: DeadlineExpired) -> bool:
        """Requests the death of stopped and stuck members; False if no member can be killed from
        here.
        """
        ranks = [rank for rank in self.members if rank != LEADER]
        requested = [self._whole.fence(rank, if_stuck=True) for rank in ranks]
        self.notes.append(f"{late}; stopped or stuck ranks are killed")
        return any(requested)

    def _next(self, rank: int) -> Bytes | None:
        """Returns the next frame of a rank in this epoch, if it has arrived."""
        frames = self._frames[rank]
        while frames and frames[0][0] < self.epoch:
            frames.popleft()
        return frames.popleft()[1] if frames and frames[0][0] == self.epoch else None

    def _record_death(self, lost: PeerLost) -> None:
        """Records a death. Raises it if it ends the job."""
        if self._is_fatal(lost):
            raise lost
        self._dead.add(lost.rank)
        if lost.rank in self.members:
            self._is_interrupted = True
        else:
            self._whole.ignore_rank(lost.rank)  # a spare, or a former member

    def _is_fatal(self, lost: PeerLost) -> bool:
        """True if a death ends the job."""
        fatal = lost.rank in (LEADER, self._whole.rank) or lost.rank < 0
        return fatal or not self.fault_tolerant
