"""A step that was taken, as the event that tells of it, with a master and without."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from atomo.exchange import Exchanged, GradientCounts, Report
from atomo.training.job.events import StepDone
from atomo.training.job.job import Job

__all__ = ["Progress", "StepProgress"]

SMOOTHING = 0.9  # weight of the past steps in what is left of the run


@final
@dataclass(frozen=True)
class StepProgress:
    """Reports, times and counts of a step."""

    number: int
    exchanged: Exchanged
    factor: float  # on the learning rate, by the noise of the codec
    update_s: float
    step_s: float
    up_bytes: int  # gradients, on the link of rank 0
    down_bytes: int  # what came back for them
    dense_bytes: int  # what gradients would take as float32
    gradients: GradientCounts | None = None  # of a step that workers were given
    images: GradientCounts | None = None
    slowest: int = 0  # the worker whose gradients take longest; 0: not known
    slowness: float = 1.0  # how many times the median of all


@final
class Progress:
    """Adds up what those report whose gradients counted."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._step_s = 0.0  # smoothed

    def done(self, taken: StepProgress) -> StepDone:
        """Returns the event of a step."""
        job, exchanged = self._job, taken.exchanged
        reports = list(exchanged.reports.values())
        images = sum(report.images for report in reports)
        gradients = taken.gradients or all_used(len(reports))
        of_images = taken.images or all_used(round(images))
        past = self._step_s or taken.step_s
        self._step_s = SMOOTHING * past + (1 - SMOOTHING) * taken.step_s

        def average(value: Callable[[Report], float]) -> float:
            return sum(map(value, reports)) / len(reports)

        return StepDone(
            step=taken.number,
            epoch=taken.number / job.steps_per_epoch,
            loss=average(lambda report: report.loss),
            accuracy=sum(report.correct for report in reports) / images,
            lr=job.rate.at(taken.number),
            workers=len(reports),
            images_per_s=images / taken.step_s,
            up_bytes=taken.up_bytes,
            down_bytes=taken.down_bytes,
            dense_bytes=taken.dense_bytes,
            step_s=taken.step_s,
            compute_s=average(lambda report: report.compute_s),
            encode_s=average(lambda report: report.encode_s),
            send_s=average(lambda report: report.send_s),
            wait_s=average(lambda report: report.wait_s),
            decode_s=exchanged.decode_s,
            update_s=taken.update_s,
            eta_s=(job.last_step - taken.number) * self._step_s,
            exchange_s=exchanged.exchange_s,
            hidden_s=exchanged.hidden_s,
            damping=taken.factor,
            follow_s=average(lambda report: report.follow_s),
            plan_since=job.plan.since,
            asked=gradients.asked,
            late=gradients.late,
            lost=gradients.lost,
            under_way=gradients.under_way,
            images_asked=of_images.asked,
            images_used=of_images.used,
            images_late=of_images.late,
            images_lost=of_images.lost,
            images_refused=of_images.refused,
            images_under_way=of_images.under_way,
            refused=gradients.refused,
            refused_from=[worker for worker, _ in gradients.refusals],
            refused_for=[fault.value for _, fault in gradients.refusals],
            slowest=taken.slowest,
            slowness=taken.slowness,
        )


def all_used(count: int) -> GradientCounts:
    """Returns the counts of a step that all ranks take together."""
    return GradientCounts(asked=count, used=count, late=0, lost=0, under_way=0)
