"""The event of a finished step, with a master and without."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, final

from atomo.exchange import Exchanged, GradientCounts, Report
from atomo.training.job.events import RankTimes, StepDone
from atomo.training.job.job import Job
from atomo.training.job.round_plan import RoundResult

__all__ = ["Progress", "StepProgress"]

RANK_PARTS = tuple(f.name for f in fields(RankTimes) if f.name not in ("step", "rank"))
MOST_RANKS = 64  # of a record of times: a line of the launcher's pipe is written in one piece
SMOOTHING = 0.9  # weight of the past steps in the estimate of the remaining time


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
    down_bytes: int  # weights or gradients in return
    dense_bytes: int  # gradients as float32
    gradients: GradientCounts | None = None  # of a step with a master
    images: GradientCounts | None = None
    slowest: int = 0  # worker with the slowest gradients; 0: unknown
    slowness: float = 1.0  # its time over the median of all workers
    steps: int = 1  # of a round with a master; otherwise a line is a step
    alone_of: int = 0  # of a local step without an exchange: the ranks that train; 0: another step
    round_result: RoundResult | None = None  # of the round of local steps that ended


@final
class Progress:
    """Builder of the events of steps, from the reports of the workers that counted."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._step_s = 0.0  # smoothed
        self._round_s = 0.0  # of the steps since the last exchange
        self._rank_sums: dict[int, list[float]] = {}  # seconds of each part, by rank
        self._rank_steps: dict[int, int] = {}

    def done(self, step: StepProgress) -> StepDone:
        """Returns the event of a step."""
        job, exchanged = self._job, step.exchanged
        reports = list(exchanged.reports.values())
        if not step.alone_of:
            self._add_rank_times(exchanged.reports)
        images = sum(report.images for report in reports)
        return StepDone(
            step=step.number,
            epoch=step.number / job.steps_per_epoch,
            accuracy=sum(report.correct for report in reports) / images,
            lr=job.rate.at(step.number),
            workers=step.alone_of or len(reports),
            images_per_s=self._images_per_s(step, images),
            up_bytes=step.up_bytes,
            down_bytes=step.down_bytes,
            dense_bytes=step.dense_bytes,
            step_s=step.step_s,
            decode_s=exchanged.decode_s,
            update_s=step.update_s,
            eta_s=(job.last_step - step.number) * self._smoothed(step.step_s / step.steps),
            exchange_s=exchanged.exchange_s,
            hidden_s=exchanged.hidden_s,
            damping=step.factor,
            plan_since=job.plan.since,
            slowest=step.slowest,
            slowness=step.slowness,
            **round_fields(step.round_result),
            **means(reports),
            **gradient_fields(step.gradients or all_used(len(reports))),
            **image_fields(step.images or all_used(round(images))),
        )

    def _add_rank_times(self, reports: Mapping[int, Report]) -> None:
        for rank, report in reports.items():
            sums = self._rank_sums.setdefault(rank, [0.0] * len(RANK_PARTS))
            for place, name in enumerate(RANK_PARTS):
                sums[place] += getattr(report, name)
            self._rank_steps[rank] = self._rank_steps.get(rank, 0) + 1

    def rank_times(self, step: int) -> RankTimes:
        """Returns the mean times of the ranks up to a step, of the busiest if there are many."""
        busiest = sorted(self._rank_sums, key=lambda rank: -sum(self._rank_sums[rank][:2]))
        ranks = sorted(busiest[:MOST_RANKS])
        rows = [[s / self._rank_steps[rank] for s in self._rank_sums[rank]] for rank in ranks]
        columns = {
            name: [round(row[place], 6) for row in rows] for place, name in enumerate(RANK_PARTS)
        }
        return RankTimes(step, ranks, **columns)

    def _images_per_s(self, step: StepProgress, images: float) -> float:
        """Returns the samples per second of all workers in a step, or in a round of local steps.

        The line of a local step has the report of rank 0 alone, and the line that ends a round the
        reports of all ranks about all steps of the round.
        """
        seconds = self._round_s + step.step_s
        if step.alone_of:
            self._round_s = seconds
            return images * step.alone_of / step.step_s
        self._round_s = 0.0
        return images / seconds

    def _smoothed(self, step_s: float) -> float:
        """Returns the exponential mean of the seconds of steps, this step included."""
        past = self._step_s or step_s
        self._step_s = SMOOTHING * past + (1 - SMOOTHING) * step_s
        return self._step_s


def round_fields(result: RoundResult | None) -> dict[str, Any]:
    """Returns the fields of a `StepDone` about a round of local steps that ended with the step."""
    if result is None:
        return {}
    return {
        "round": result.number,
        "round_steps": result.steps,
        "outer_rate": result.outer_rate,
        "correlation": result.correlation,
        "round_steps_of": [*result.steps_of],
    }


def means(reports: Sequence[Report]) -> dict[str, Any]:
    """Returns the fields of a `StepDone` that are means over the reports."""
    names = "loss", "compute_s", "encode_s", "send_s", "wait_s", "follow_s"
    return {name: sum(getattr(report, name) for report in reports) / len(reports) for name in names}


def gradient_fields(counts: GradientCounts) -> dict[str, Any]:
    """Returns the fields of a `StepDone` that count gradients."""
    return {
        "asked": counts.asked,
        "late": counts.late,
        "lost": counts.lost,
        "under_way": counts.under_way,
        "refused": counts.refused,
        "refused_from": [worker for worker, _ in counts.refusals],
        "refused_for": [fault.value for _, fault in counts.refusals],
    }


def image_fields(counts: GradientCounts) -> dict[str, Any]:
    """Returns the fields of a `StepDone` that count images."""
    return {
        "images_asked": counts.asked,
        "images_used": counts.used,
        "images_late": counts.late,
        "images_lost": counts.lost,
        "images_refused": counts.refused,
        "images_under_way": counts.under_way,
    }


def all_used(count: int) -> GradientCounts:
    """Returns the counts of a step that all ranks take together."""
    return GradientCounts(asked=count, used=count, late=0, lost=0, under_way=0)
