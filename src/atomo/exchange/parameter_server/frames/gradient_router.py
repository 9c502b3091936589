"""Router of gradient frames: to the open step, to the late gradients, or to the refusals."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar, final

from atomo.errors import FrameError
from atomo.exchange.parameter_server.frames.commands import CommandSender
from atomo.exchange.parameter_server.frames.refusals import Refusals
from atomo.exchange.parameter_server.members.assignments import Assignments
from atomo.exchange.parameter_server.members.members import Members
from atomo.exchange.parameter_server.ordered_sum import UndecodableFrames
from atomo.exchange.parameter_server.scale_agreement import ScaleAgreement
from atomo.exchange.parameter_server.step_gradients import StepGradients
from atomo.fusion import Bucket
from atomo.transports import Message
from atomo.wire import Bytes, Header, Kind

__all__ = ["GradientRouter"]

T = TypeVar("T")


@final
class GradientRouter:
    """Router of gradient frames, which refuses malformed frames."""

    def __init__(
        self,
        members: Members,
        assignments: Assignments,
        agreement: ScaleAgreement,
        commands: CommandSender,
        refusals: Refusals,
    ) -> None:
        self.gradients: StepGradients | None = None
        """Gradients of the open step; None if no step is open."""
        self.step, self.buckets = 0, tuple[Bucket, ...]()
        """Newest step and its buckets."""
        self.decode_s = 0.0
        """Seconds spent on decoding and adding so far."""
        self._members, self._assignments = members, assignments
        self._agreement, self._commands, self._refusals = agreement, commands, refusals

    def expect(self, step: int, buckets: Sequence[Bucket]) -> None:
        """Sets the newest step."""
        self.step, self.buckets = step, tuple(buckets)

    def route(self, message: Message, header: Header, step: StepGradients) -> None:
        """Handles a gradient frame of the open step or of an earlier one."""
        worker = message.source
        try:
            if header.kind is Kind.SCALES:
                self._answer_scales(message, header)
            elif header.step != self.step:
                self._open_for_late_worker(header, worker)
            elif header.kind is Kind.REPORT:
                step.complete(worker, message.data)
                self._finish(worker, self._assignments.complete)
            else:
                self._timed(lambda: step.add(worker, header.bucket, message.data))
        except UndecodableFrames as undecodable:
            self._refuse_all(undecodable)
        except FrameError as error:
            self.refuse(worker, error)
            if header.kind is Kind.REPORT:
                self._refusals.refused_tail.end(worker)

    def route_late(self, message: Message, header: Header) -> None:
        """Handles a gradient frame while no step is open: the gradient is late."""
        try:
            if header.kind is Kind.SCALES:
                self._answer_scales(message, header)
            elif header.kind is Kind.REPORT:
                self._finish(message.source, self._assignments.complete_late)
        except FrameError as error:
            self.refuse(message.source, error)

    def close(self, step: StepGradients) -> Mapping[int, Mapping[int, Bytes]] | None:
        """Returns the frames in the sum; None if some are refused, and the step stays open."""
        try:
            return self._timed(lambda: step.close(self._assignments.complete_images))
        except UndecodableFrames as undecodable:
            self._refuse_all(undecodable)
            return None

    def refuse(self, worker: int, error: FrameError) -> None:
        """Refuses the gradient that a worker is sending. Its earlier gradients still count."""
        step = self.gradients
        if step is not None and worker not in step.reports:
            step.exclude(worker)
        self._refusals.refuse(worker, error, self.buckets)
        if step is not None:
            self._agreement.lose(worker, step.missing)

    def lose(self, worker: int) -> None:
        """Removes a dead worker from the open step and from the agreement on scales."""
        step = self.gradients
        if step is not None:
            step.drop(worker)
        self._agreement.lose(worker, self._members.living if step is None else step.missing)

    def _refuse_all(self, undecodable: UndecodableFrames) -> None:
        """Refuses gradients that cannot be added, even complete ones."""
        for worker, error in undecodable.errors.items():
            was_complete = self.gradients is not None and self.gradients.exclude(worker)
            self._refusals.refuse(worker, error, self.buckets, was_complete=was_complete)

    def _answer_scales(self, message: Message, header: Header) -> None:
        if header.step == self.step:
            self._agreement.answer(message)
        else:
            self._agreement.refuse(message.source, header.step)

    def _open_for_late_worker(self, header: Header, worker: int) -> None:
        """Commands the open step to a late worker once its late gradient is complete."""
        if header.kind is Kind.REPORT:
            self._finish(worker, self._assignments.complete_late)
            self._commands.compute([worker])

    def _finish(self, worker: int, record: Callable[[int], None]) -> None:
        """Records the outcome of a complete gradient with `record`."""
        record(worker)
        self._members.failure_detector.complete_gradient(worker)
        self._refusals.refused_tail.end(worker)

    def _timed(self, decode: Callable[[], T]) -> T:
        started = time.perf_counter()
        result = decode()
        self.decode_s += time.perf_counter() - started
        return result
