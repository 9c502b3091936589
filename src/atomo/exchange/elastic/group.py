"""The membership of a job without a master, and its changes when a rank dies.

Rank 0 leads. A rank that learns of a death, or of a due verdict, stops its exchange and sends its
progress to rank 0. Rank 0 recalls all other ranks, decides which steps count and who continues, and
sends the verdict. While spares wait for the slots of the dead, the verdict also names a meeting
step: all members send their progress again before that step, and the next verdict names the spares
that join. The protocol uses point-to-point messages only. A run without deaths sends none of them.
"""

from collections.abc import Sequence
from typing import final

from torch import Tensor

from atomo.errors import TransportError
from atomo.exchange.elastic.epoch_transport import LEADER, EpochTransport
from atomo.exchange.elastic.frames import (
    control_frame,
    progress_frame,
    read_progress,
    read_state_of,
    read_verdict,
    verdict_frame,
)
from atomo.exchange.elastic.progress import RankProgress, Reports, Verdict, membership_notes
from atomo.exchange.elastic.sample_split import SampleSplit
from atomo.exchange.elastic.spare_slots import SpareSlots
from atomo.exchange.state import State, read_state, state_frame
from atomo.exchange.states import InitialState
from atomo.transports import Transport
from atomo.wire import Bytes, Header, Kind, claimed_kind, read_header

__all__ = ["ElasticGroup"]


@final
class ElasticGroup:
    """One rank's view of the group."""

    def __init__(
        self,
        transport: Transport,
        workers: int,
        min_workers: int,
        images: int,
        timeout_s: float,
        unit: str = "step",
        open_steps: int = 1,
    ) -> None:
        """Creates a group without losses.

        Args:
            transport: connects all ranks; used by the group alone meanwhile.
            workers: number of members, the first ranks; the other ranks are spares.
            min_workers: smallest number of living ranks, spares included.
            images: images of each step, divided among its members.
            timeout_s: the longest wait for a member.
            unit: the name of a step in messages: "round" with local steps.
            open_steps: the steps that members may have begun beyond the last committed step: 2 if
                the exchange of a step continues during the next step.
        """
        self._unit = unit
        self.transport = EpochTransport(transport, range(workers), timeout_s)
        """The members' transport."""
        self.sample_split = SampleSplit(images, self.members)
        """The split of each step's images."""
        self.rank = transport.rank
        self._notes: list[str] = []
        self._committed = 0
        self._last: Reports = {}  # of the last committed step
        self._ranks, self._timeout_s = transport.size, timeout_s
        self._slots = SpareSlots(transport.size, workers, min_workers, open_steps)

    @property
    def members(self) -> tuple[int, ...]:
        """The ranks that take part."""
        return self.transport.members

    @property
    def is_complete(self) -> bool:
        """True while no member has died."""
        return not self.transport.epoch

    @property
    def is_spare(self) -> bool:
        """True while this rank waits for a slot."""
        return self.rank not in self.members

    def take_notes(self) -> list[str]:
        """Returns the messages to the user since the last call."""
        self._notes += self._slots.note_dead_spares(self.transport.is_dead)
        notes, self._notes = self.transport.notes + self._notes, []
        self.transport.notes.clear()
        return notes

    def resume_after(self, step: int) -> None:
        """Sets the number of committed steps of a resumed run."""
        self._committed, self._last = step, {}

    def commit(self, step: int, reports: Reports) -> None:
        """Commits a step with the reports of the ranks that counted."""
        self._committed, self._last = step, reports

    def check(self) -> None:
        """Raises TooFewWorkers if fewer ranks live than the minimum."""
        self._slots.check(self.members)

    def recover(self) -> Verdict:
        """Agrees with all living members on the last committed step and on the next members.

        Raises:
            PeerLost: rank 0 is dead.
            DeadlineExpired: a living member does not answer.
        """
        verdict = self._decide() if self.rank == LEADER else self._report_progress()
        self._apply(verdict)
        return verdict

    def meets_before(self, step: int) -> bool:
        """Returns True if all members meet before a step, to admit spares."""
        return self._slots.is_meeting_step(step, self.members)

    def admit_spares(self, step: int) -> tuple[int, ...]:
        """Fills free slots with spares before a step: all members meet, and the spares join. Rank 0
        then sends them their start.

        Returns:
            The ranks that joined.

        Raises:
            TooFewWorkers: fewer ranks live than the minimum.
            PeerLost, DeadlineExpired: as of `recover`.
        """
        before = self.members
        self.check()
        while self._slots.is_meeting_step(step, self.members):
            if self.rank == LEADER:
                self._apply(self._decide(fills=True))
            else:
                self._follow_control("the assignment of free slots")
            self.check()
        return tuple(rank for rank in self.members if rank not in before)

    def send_start(self, ranks: Sequence[int], state: State, step: int) -> None:
        """Sends joining ranks the state after a step, from which they start."""
        label = "the initial state"
        for rank in ranks:
            self.transport.send_to(
                rank, state_frame(Header(Kind.STATE, step, rank + 1), state), label
            )
        # MPI moves large messages only inside calls, and this rank is about to compute.
        self.transport.drain(self._timeout_s)

    def wait_for_slot(self) -> InitialState | None:
        """Waits for a slot and for the start that rank 0 sends; None: the run ended first.

        Raises:
            PeerLost: rank 0 is dead.
            FrameError: rank 0 sent another kind of frame.
        """
        label = "the initial state"
        if claimed_kind(frame := self.transport.wait_for_leader("a slot")) == Kind.STOP:
            return None
        verdict = read_verdict(frame, self._ranks)
        self.transport.join_epoch(read_header(frame).step, verdict.members)
        self._set_members(verdict)
        self._committed, self._last = verdict.step, verdict.reports
        while not self.transport.states[LEADER]:
            self.transport.receive_from(LEADER, label)
        frame = self.transport.states[LEADER].popleft()
        return InitialState(read_header(frame).step, read_state(frame))

    def gather_states(self, state: State, step: int, label: str) -> dict[int, dict[str, Tensor]]:
        """Returns the states of all living members by rank, at rank 0; an empty mapping at other
        ranks.

        Raises:
            FrameError: a rank sent the state of another step.
        """
        if self.rank != LEADER:
            header = Header(Kind.STATE, step, self.rank + 1)
            self.transport.send_to(LEADER, state_frame(header, state), label)
            return {}
        states = {LEADER: dict(state)}
        for rank in self.members[1:]:
            frame = self._state_of(rank, label)
            if frame is not None:
                states[rank] = read_state_of(rank, frame, step, label)
        return states

    def finish(self) -> None:
        """Waits after the last step until every living member has committed it, since another
        member may need the reports that this rank has. Called after rank 0 has gathered the last
        states.
        """
        if self.rank == LEADER:
            for rank in self.members[1:] + self._slots.waiting:
                self.transport.send_to(
                    rank, control_frame(Kind.STOP, self._committed, self.rank), "the end"
                )
            return
        while self._follow_control("the end of the run"):
            pass

    def _follow_control(self, label: str) -> bool:
        """Waits for the next control frame of rank 0 and executes it; False after STOP."""
        kind = claimed_kind(self.transport.receive_control(label))
        if kind == Kind.RECALL:
            self.recover()
        return kind != Kind.STOP

    def _decide(self, *, fills: bool = False) -> Verdict:
        """Returns the verdict, once all members have sent their progress.

        Args:
            fills: True if spares take the free slots now: all members met, and none has begun the
                step.
        """
        for rank in self.members[1:]:
            self.transport.send_to(
                rank, control_frame(Kind.RECALL, self.transport.epoch, self.rank), "a recall"
            )
        progress = {self.rank: self._own_progress()}
        for rank in self.members[1:]:
            if (frame := self._progress_of(rank)) is not None:
                progress[rank] = read_progress(frame, self._ranks)
        if fills:
            self.transport.poll()  # a spare that is dead already must not get a slot
        self._notes += self._slots.note_dead_spares(self.transport.is_dead)
        verdict = self._slots.verdict(progress, self.members, fills=fills)
        for rank in verdict.members[1:]:
            frame = verdict_frame(verdict, self.transport.epoch + 1)
            self.transport.send_to(rank, frame, "a verdict")
        return verdict

    def _report_progress(self) -> Verdict:
        frame = progress_frame(self._own_progress(), self.transport.epoch, self.rank)
        self.transport.send_to(LEADER, frame, "the progress of a rank")
        while claimed_kind(frame := self.transport.receive_control("a verdict")) == Kind.RECALL:
            pass  # this rank has sent its progress already
        verdict = read_verdict(frame, self._ranks)
        if read_header(frame).step != self.transport.epoch + 1 or self.rank not in verdict.members:
            raise TransportError(f"rank {self.rank} is not among the ranks that continue")
        return verdict

    def _apply(self, verdict: Verdict) -> None:
        self._notes += membership_notes(self.members, verdict, self._slots.count, self._unit)
        self.transport.advance_epoch(verdict.members)
        self._set_members(verdict)

    def _set_members(self, verdict: Verdict) -> None:
        self.sample_split.set_members(verdict.first_step, verdict.members)
        self._slots.apply(verdict)

    def _own_progress(self) -> RankProgress:
        return RankProgress(self._committed, self._last)

    def _progress_of(self, rank: int) -> Bytes | None:
        """Returns the progress frame of a rank; None: it is dead."""
        while rank not in self.transport.progress:
            if not self.transport.receive_from(rank, "the progress"):
                return None
        return self.transport.progress.pop(rank)

    def _state_of(self, rank: int, label: str) -> Bytes | None:
        """Returns the state that a rank sent for a checkpoint; None: it is dead."""
        while not self.transport.states[rank]:
            if rank not in self.members or not self.transport.receive_from(rank, label):
                return None
            if self.transport.progress:
                self.recover()  # the rank waits for a verdict before it sends its state
        return self.transport.states[rank].popleft()
