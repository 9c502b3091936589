"""Who takes part in the steps of a job without a master, and how that changes when a rank dies.

Rank 0 leads. Who hears of a death, or of a verdict that is due, stops what it exchanges and tells
rank 0 where it stands; rank 0 has all others do so, and says what counts and who goes on. Where
ranks wait for the places of the dead, it also says before which step all are to meet; there it has
them say where they stand once more, and its verdict names who has joined. Nothing but
point-to-point messages is used, and only while a verdict is due any that a run without deaths does
not send.
"""

from collections.abc import Sequence
from typing import final

from torch import Tensor

from atomo.communicators.crew.circle import LEADER, Circle
from atomo.communicators.crew.division import Division
from atomo.communicators.crew.frames import (
    bare,
    read_standing,
    read_verdict,
    standing_frame,
    state_of,
    verdict_frame,
)
from atomo.communicators.crew.notes import notes_of
from atomo.communicators.crew.places import Places
from atomo.communicators.crew.standing import Reports, Standing, Verdict
from atomo.communicators.rooted import Dealt
from atomo.communicators.state import State, read_state, state_frame
from atomo.errors import TransportError
from atomo.transports import Transport
from atomo.wire import Bytes, Header, Kind, claimed_kind, read_header

__all__ = ["Crew"]


@final
class Crew:
    """What one rank knows of those who take part."""

    def __init__(
        self, transport: Transport, workers: int, least: int, images: int, timeout_s: float
    ) -> None:
        """All are there.

        Args:
            transport: connects all ranks; nobody else uses it meanwhile.
            workers: the first so many ranks take part, and others wait.
            least: how many must be left, those who wait among them.
            images: of each step, which those who share it divide.
            timeout_s: the longest wait for one of them.
        """
        self.circle = Circle(transport, range(workers), timeout_s)
        """Those who take part."""
        self.division = Division(images, self.members)
        """Of the images of each step."""
        self.rank = transport.rank
        self._notes: list[str] = []
        self._done = 0
        self._last: Reports = {}  # of the ranks that counted in that step
        self._ranks, self._timeout_s = transport.size, timeout_s
        self._places = Places(transport.size, workers, least)

    @property
    def members(self) -> tuple[int, ...]:
        """The ranks that take part."""
        return self.circle.members

    @property
    def is_whole(self) -> bool:
        """Whether nobody was lost so far."""
        return not self.circle.epoch

    @property
    def waits(self) -> bool:
        """Whether this rank waits for a place."""
        return self.rank not in self.members

    def take_notes(self) -> list[str]:
        """What became of others since this was last asked."""
        self._notes += self._places.miss(self.circle.is_gone)
        notes, self._notes = self.circle.notes + self._notes, []
        self.circle.notes.clear()
        return notes

    def go_on_after(self, step: int) -> None:
        """So many steps count, of a run that goes on."""
        self._done, self._last = step, {}

    def commit(self, step: int, reports: Reports) -> None:
        """A step counts, and so do those who said these reports."""
        self._done, self._last = step, reports

    def check(self) -> None:
        """Raises TooFewWorkers where fewer are left than must be."""
        self._places.check(self.members)

    def recover(self) -> Verdict:
        """Has all who are left agree on what counts; from here on they are who takes part.

        Raises:
            PeerLost: rank 0 is gone.
            DeadlineExpired: somebody who is left does not answer.
        """
        verdict = self._lead() if self.rank == LEADER else self._follow()
        self._go_by(verdict)
        return verdict

    def meet(self, step: int) -> tuple[int, ...]:
        """Before a step: where places are free and others wait for them, all come together, and
        those take part from here on; who does. Rank 0 gives them where to begin.

        Raises:
            TooFewWorkers: fewer are left than must be.
            PeerLost, DeadlineExpired: as `recover`.
        """
        before = self.members
        self.check()
        while self._places.has_all_meet(step, self.members):
            if self.rank == LEADER:
                self._go_by(self._lead(fills=True))
            else:
                self._heed("who takes the places of the dead")
            self.check()
        return tuple(rank for rank in self.members if rank not in before)

    def give(self, ranks: Sequence[int], state: State, step: int) -> None:
        """Has those who join begin after a step, with this state."""
        what = "where to begin"
        for rank in ranks:
            self.circle.say(rank, state_frame(Header(Kind.STATE, step, rank + 1), state), what)
        self.circle.drain(self._timeout_s)  # while they wait for it, and before it is busy again

    def wait(self) -> Dealt | None:
        """Waits for a place, and for what rank 0 gives who takes it; None: the run was over first.

        Raises:
            PeerLost: rank 0 is gone.
            FrameError: it said something else.
        """
        what = "where to begin"
        if claimed_kind(frame := self.circle.idle("a place to take")) == Kind.STOP:
            return None
        verdict = read_verdict(frame, self._ranks)
        self.circle.join(read_header(frame).step, verdict.members)
        self._take_in(verdict)
        self._done, self._last = verdict.step, verdict.reports
        while not self.circle.states[LEADER]:
            self.circle.hear(LEADER, what)
        frame = self.circle.states[LEADER].popleft()
        return Dealt(read_header(frame).step, read_state(frame))

    def collect(self, state: State, step: int, what: str) -> dict[int, dict[str, Tensor]]:
        """What every member that lives has, by rank, at rank 0; nothing at the others.

        Raises:
            FrameError: somebody sent what is of another step.
        """
        if self.rank != LEADER:
            header = Header(Kind.STATE, step, self.rank + 1)
            self.circle.say(LEADER, state_frame(header, state), what)
            return {}
        found = {LEADER: dict(state)}
        for rank in self.members[1:]:
            frame = self._state_of(rank, what)
            if frame is not None:
                found[rank] = state_of(rank, frame, step, what)
        return found

    def end(self) -> None:
        """After the last step, and after rank 0 has what all have of it: nobody leaves before all
        who are left have taken that step, as another may need what it has.
        """
        if self.rank == LEADER:
            for rank in self.members[1:] + self._places.waiting:
                self.circle.say(rank, bare(Kind.STOP, self._done, self.rank), "the end")
            return
        while self._heed("the end of the run"):
            pass

    def _heed(self, what: str) -> bool:
        """Waits for the next word of rank 0, and does as it says; whether it is not the last."""
        kind = claimed_kind(self.circle.listen(what))
        if kind == Kind.RECALL:
            self.recover()
        return kind != Kind.STOP

    def _lead(self, *, fills: bool = False) -> Verdict:
        """The verdict, once all have said where they stand.

        Args:
            fills: whether those who wait take the places that are free, as nobody has begun a step
                since all met.
        """
        for rank in self.members[1:]:
            self.circle.say(rank, bare(Kind.RECALL, self.circle.epoch, self.rank), "a recall")
        standings = {self.rank: self._standing()}
        for rank in self.members[1:]:
            if (frame := self._standing_of(rank)) is not None:
                standings[rank] = read_standing(frame, self._ranks)
        if fills:
            self.circle.look()  # so that no place goes to who is dead already
        self._notes += self._places.miss(self.circle.is_gone)
        verdict = self._places.verdict_on(standings, self.members, fills=fills)
        for rank in verdict.members[1:]:
            frame = verdict_frame(verdict, self.circle.epoch + 1)
            self.circle.say(rank, frame, "a verdict")
        return verdict

    def _follow(self) -> Verdict:
        frame = standing_frame(self._standing(), self.circle.epoch, self.rank)
        self.circle.say(LEADER, frame, "where a rank stands")
        while claimed_kind(frame := self.circle.listen("a verdict")) == Kind.RECALL:
            pass  # it has said so already
        verdict = read_verdict(frame, self._ranks)
        if read_header(frame).step != self.circle.epoch + 1 or self.rank not in verdict.members:
            raise TransportError(f"rank {self.rank} is not of those who go on")
        return verdict

    def _go_by(self, verdict: Verdict) -> None:
        self._notes += notes_of(self.members, verdict, self._places.count)
        self.circle.turn(verdict.members)
        self._take_in(verdict)

    def _take_in(self, verdict: Verdict) -> None:
        self.division.change(verdict.edge, verdict.members)
        self._places.go_by(verdict)

    def _standing(self) -> Standing:
        return Standing(self._done, self._last)

    def _standing_of(self, rank: int) -> Bytes | None:
        """Where a rank stands; None: it is gone."""
        while rank not in self.circle.standings:
            if not self.circle.hear(rank, "where it stands,"):
                return None
        return self.circle.standings.pop(rank)

    def _state_of(self, rank: int, what: str) -> Bytes | None:
        """What a rank gave for a checkpoint; None: it is gone."""
        while not self.circle.states[rank]:
            if rank not in self.members or not self.circle.hear(rank, what):
                return None
            if self.circle.standings:
                self.recover()  # it waits for a verdict, and then goes on to give that
        return self.circle.states[rank].popleft()
