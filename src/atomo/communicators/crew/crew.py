"""Who takes part in the steps of a job without a master, and how that changes when a rank dies.

Rank 0 leads. Who hears of a death, or of a verdict that is due, stops what it exchanges and tells
rank 0 where it stands; rank 0 has all others do so, and says what counts and who goes on. Nothing
but point-to-point messages is used, and only while a verdict is due any that a run without deaths
does not send.
"""

from typing import final

from torch import Tensor

from atomo.communicators.crew.circle import LEADER, Circle
from atomo.communicators.crew.frames import (
    bare,
    read_standing,
    read_verdict,
    standing_frame,
    verdict_frame,
)
from atomo.communicators.crew.standing import Reports, Standing, Verdict, judge
from atomo.communicators.parameter_server.accounts import Balance
from atomo.communicators.sharing import part
from atomo.communicators.state import State, read_state, state_frame
from atomo.errors import FrameError, TooFewWorkers, TransportError
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
            least: how many must be left.
            images: of each step, which those who share it divide.
            timeout_s: the longest wait for one of them.
        """
        self.circle = Circle(transport, range(workers), timeout_s)
        """Those who take part."""
        self.rank = transport.rank
        self._notes: list[str] = []
        self._done = 0
        self._last: Reports = {}  # of the ranks that counted in that step
        self._ranks, self._workers = transport.size, workers
        self._least, self._images = least, images
        self._divisions = {0: self.circle.members}  # by the first step that is divided so

    @property
    def members(self) -> tuple[int, ...]:
        """The ranks that take part."""
        return self.circle.members

    @property
    def is_whole(self) -> bool:
        """Whether nobody was lost so far."""
        return not self.circle.epoch

    def take_notes(self) -> list[str]:
        """What became of others since this was last asked."""
        notes, self._notes = self._notes, []
        return notes

    def go_on_after(self, step: int) -> None:
        """So many steps count, of a run that goes on."""
        self._done, self._last = step, {}

    def commit(self, step: int, reports: Reports) -> None:
        """A step counts, and so do those who said these reports."""
        self._done, self._last = step, reports

    def check(self) -> None:
        """Raises TooFewWorkers where fewer are left than must be."""
        if len(self.members) < self._least:
            dead = sorted({*range(self._workers)} - {*self.members})
            raise TooFewWorkers(
                f"rank {dead} of {self._workers} died, which leaves {len(self.members)}; "
                f"--min-workers is {self._least}"
            )

    def sharers(self, step: int) -> tuple[int, ...]:
        """The ranks that divide the images of a step, some of which may be gone by now."""
        return self._divisions[max(first for first in self._divisions if first <= step)]

    def shares(self, step: int) -> tuple[float, ...]:
        """What each member weighs in the mean of a step, by its images; none: all the same."""
        images = self._parts(step)
        whole = sum(images)
        return () if len({*images}) == 1 else tuple(one / whole for one in images)

    def balances(self, step: int, reports: Reports) -> tuple[Balance, Balance]:
        """What became of the gradients of a step that counts, and of their images."""
        sharing, used = len(self.sharers(step)), len(reports)
        images = round(sum(report.images for report in reports.values()))
        return book(sharing, used), book(self._images, images)

    def recover(self) -> Verdict:
        """Has all who are left agree on what counts; from here on they are who takes part.

        Raises:
            PeerLost: rank 0 is gone.
            DeadlineExpired: somebody who is left does not answer.
        """
        standing = Standing(self._done, self._last)
        leads = self.rank == LEADER
        verdict = self._lead(standing) if leads else self._follow(standing)
        self._note(verdict)
        self.circle.turn(verdict.members)
        early = {first: who for first, who in self._divisions.items() if first < verdict.edge}
        self._divisions = early | {verdict.edge: verdict.members}
        return verdict

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
                check(frame, rank, step, what)
                found[rank] = read_state(frame)
        return found

    def end(self) -> None:
        """After the last step, and after rank 0 has what all have of it: nobody leaves before all
        who are left have taken that step, as another may need what it has.
        """
        if self.rank == LEADER:
            for rank in self.members[1:]:
                self.circle.say(rank, bare(Kind.STOP, self._done, self.rank), "the end")
            return
        while claimed_kind(frame := self.circle.listen("the end of the run")) != Kind.STOP:
            if claimed_kind(frame) == Kind.RECALL:
                self.recover()

    def _lead(self, standing: Standing) -> Verdict:
        for rank in self.members[1:]:
            self.circle.say(rank, bare(Kind.RECALL, self.circle.epoch, self.rank), "a recall")
        standings = {self.rank: standing}
        for rank in self.members[1:]:
            if (frame := self._standing_of(rank)) is not None:
                standings[rank] = read_standing(frame, self._ranks)
        verdict = judge(standings)
        for rank in verdict.members[1:]:
            frame = verdict_frame(verdict, self.circle.epoch + 1)
            self.circle.say(rank, frame, "a verdict")
        return verdict

    def _follow(self, standing: Standing) -> Verdict:
        frame = standing_frame(standing, self.circle.epoch, self.rank)
        self.circle.say(LEADER, frame, "where a rank stands")
        while claimed_kind(frame := self.circle.listen("a verdict")) == Kind.RECALL:
            pass  # it has said so already
        verdict = read_verdict(frame, self._ranks)
        if read_header(frame).step != self.circle.epoch + 1 or self.rank not in verdict.members:
            raise TransportError(f"rank {self.rank} is not of those who go on")
        return verdict

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

    def _note(self, verdict: Verdict) -> None:
        left = len(verdict.members)
        for rank in sorted({*self.members} - {*verdict.members}):
            self._notes.append(
                f"rank {rank} is gone; {left} of {self._workers} ranks go on, and share its part "
                f"of each step from step {verdict.edge} on"
            )

    def _parts(self, step: int) -> list[int]:
        """The images of each member in a step."""
        sharing = self.sharers(step)
        return [len(part(self._images, sharing.index(rank), len(sharing))) for rank in self.members]


def book(asked: int, used: int) -> Balance:
    """Of a step that waits for all who are left: what is not used was lost."""
    return Balance(asked=asked, used=used, late=0, lost=asked - used, under_way=0)


def check(frame: Bytes, rank: int, step: int, what: str) -> None:
    """Raises FrameError unless it is the state of a rank after a step."""
    if (found := read_header(frame)) != Header(Kind.STATE, step, rank + 1):
        raise FrameError(
            f"rank {rank} sent {found.kind.name} of step {found.step} where {what} of step "
            f"{step} was expected"
        )
