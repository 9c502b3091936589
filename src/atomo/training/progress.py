"""A step that all ranks took together, as the event that tells of it."""

from collections.abc import Callable
from typing import final

from atomo.communicators import Report
from atomo.training.events import StepDone
from atomo.training.job import Job
from atomo.training.replica import Taken

__all__ = ["Progress"]

SMOOTHING = 0.9  # weight of the past steps in what is left of the run


@final
class Progress:
    """Adds up what the ranks report."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._step_s = 0.0  # smoothed

    def done(self, step: int, taken: Taken, sent: int, received: int) -> StepDone:
        """The event of a step.

        Args:
            step: its number.
            taken: what it came to.
            sent: bytes that this rank sent.
            received: bytes that it received.
        """
        job, exchanged = self._job, taken.exchanged
        reports = list(exchanged.reports.values())
        images = sum(report.images for report in reports)
        past = self._step_s or taken.step_s
        self._step_s = SMOOTHING * past + (1 - SMOOTHING) * taken.step_s

        def average(value: Callable[[Report], float]) -> float:
            return sum(map(value, reports)) / len(reports)

        return StepDone(
            step=step,
            epoch=step / job.steps_per_epoch,
            loss=average(lambda report: report.loss),
            accuracy=sum(report.correct for report in reports) / images,
            lr=job.rate.at(step),
            workers=len(reports),
            images_per_s=images / taken.step_s,
            up_bytes=sent,
            down_bytes=received,
            dense_bytes=dense_bytes(job),
            step_s=taken.step_s,
            compute_s=average(lambda report: report.compute_s),
            encode_s=average(lambda report: report.encode_s),
            send_s=average(lambda report: report.send_s),
            wait_s=average(lambda report: report.wait_s),
            decode_s=exchanged.decode_s,
            update_s=taken.update_s,
            eta_s=(job.last_step - step) * self._step_s,
            exchange_s=exchanged.exchange_s,
            hidden_s=exchanged.hidden_s,
            damping=taken.factor,
        )


def dense_bytes(job: Job) -> int:
    """What a rank sends in an all-reduce of the gradient as float32."""
    return 2 * 4 * job.entries * (job.workers - 1) // job.workers
