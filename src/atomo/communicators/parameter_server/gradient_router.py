"""What becomes of the frames of gradients: they are in the open step, late, or refused."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar, final

from atomo.communicators.parameter_server.assignments import Assignments
from atomo.communicators.parameter_server.commands import CommandSender
from atomo.communicators.parameter_server.members import Members
from atomo.communicators.parameter_server.ordered_sum import UndecodableFrames
from atomo.communicators.parameter_server.refusals import Refusals
from atomo.communicators.parameter_server.scale_agreement import ScaleAgreement
from atomo.communicators.parameter_server.step_gradients import StepGradients
from atomo.errors import FrameError
from atomo.fusion import Bucket
from atomo.transports import Message
from atomo.wire import Bytes, Header, Kind

__all__ = ["GradientRouter"]

T = TypeVar("T")


@final
class GradientRouter:
    """Takes in frames that were due, and refuses what they hold where that is not what it should
    be.
    """

    def __init__(
        self,
        members: Members,
        assignments: Assignments,
        agreement: ScaleAgreement,
        commands: CommandSender,
        refusals: Refusals,
    ) -> None:
        self.gradients: StepGradients | None = None
        """Of the open step."""
        self.step, self.buckets = 0, tuple[Bucket, ...]()
        """The last that was opened, and its buckets."""
        self.decode_s = 0.0
        """Spent on decoding and adding up, so far."""
        self._members, self._assignments = members, assignments
        self._agreement, self._commands, self._refusals = agreement, commands, refusals

    def expect(self, step: int, buckets: Sequence[Bucket]) -> None:
        """A step is opened."""
        self.step, self.buckets = step, tuple(buckets)

    def take(self, message: Message, header: Header, step: StepGradients) -> None:
        """A frame of a gradient, of the open step or of one before it."""
        worker = message.source
        try:
            if header.kind is Kind.SCALES:
                self._answer_scales(message, header)
            elif header.step != self.step:
                self._readmit(header, worker)
            elif header.kind is Kind.REPORT:
                step.complete(worker, message.data)
                self._end(worker, self._assignments.complete)
            else:
                self._timed(lambda: step.add(worker, header.bucket, message.data))
        except UndecodableFrames as undecodable:
            self._refuse_all(undecodable)
        except FrameError as error:
            self.refuse(worker, error)
            if header.kind is Kind.REPORT:
                self._refusals.refused_tail.end(worker)

    def route_late(self, message: Message, header: Header) -> None:
        """A frame of a gradient when no step is open: it comes too late."""
        try:
            if header.kind is Kind.SCALES:
                self._answer_scales(message, header)
            elif header.kind is Kind.REPORT:
                self._end(message.source, self._assignments.late)
        except FrameError as error:
            self.refuse(message.source, error)

    def closed(self, step: StepGradients) -> Mapping[int, Mapping[int, Bytes]] | None:
        """The frames that are in the sum; None: some could not be, and the step is still open."""
        try:
            return self._timed(lambda: step.close(self._assignments.complete_images))
        except UndecodableFrames as undecodable:
            self._refuse_all(undecodable)
            return None

    def refuse(self, worker: int, error: FrameError) -> None:
        """Goes on without what a worker is sending. What it had sent before counts."""
        step = self.gradients
        if step is not None and worker not in step.reports:
            step.exclude(worker)
        self._refusals.refuse(worker, error, self.buckets)
        if step is not None:
            self._agreement.lose(worker, step.missing)

    def lose(self, worker: int) -> None:
        """A worker is gone: nobody waits for what it would have sent."""
        step = self.gradients
        if step is not None:
            step.drop(worker)
        self._agreement.lose(worker, self._members.living if step is None else step.missing)

    def _refuse_all(self, undecodable: UndecodableFrames) -> None:
        """Goes on without gradients that cannot be in a sum, though they may be whole."""
        for worker, error in undecodable.by.items():
            was_in = self.gradients is not None and self.gradients.exclude(worker)
            self._refusals.refuse(worker, error, self.buckets, was_in=was_in)

    def _answer_scales(self, message: Message, header: Header) -> None:
        if header.step == self.step:
            self._agreement.answer(message)
        else:
            self._agreement.refuse(message.source, header.step)

    def _readmit(self, header: Header, worker: int) -> None:
        """Gives a worker whose whole gradient came too late the step that is open."""
        if header.kind is Kind.REPORT:
            self._end(worker, self._assignments.late)
            self._commands.compute([worker])

    def _end(self, worker: int, how: Callable[[int], None]) -> None:
        """All of its gradient has come."""
        how(worker)
        self._members.failure_detector.complete(worker)
        self._refusals.refused_tail.end(worker)

    def _timed(self, decode: Callable[[], T]) -> T:
        started = time.perf_counter()
        result = decode()
        self.decode_s += time.perf_counter() - started
        return result
