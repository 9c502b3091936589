"""Curves of training: loss and metric over steps, seconds and bytes, of one run or of several."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, final

import numpy as np
from jaxtyping import Bool

from atomo.report.charts import STYLES, Chart, Series, line_chart
from atomo.report.columns import Column, StepColumns, masked, number, zeroed
from atomo.report.records import RunRecords
from atomo.report.scales import BYTES, SECONDS, ChartAxis, Values
from atomo.workloads import Metric

__all__ = ["COSTS", "MetricCurve", "loss_charts", "metric_charts", "metric_curve", "smoothed"]

COSTS: Final[Mapping[str, ChartAxis]] = MappingProxyType(
    {
        "seconds": ChartAxis("time of training steps", SECONDS),
        "steps": ChartAxis("step"),
        "bytes": ChartAxis("gradients sent", BYTES),
    }
)
"""The axes that a curve is drawn over: what a run spent up to a step."""
DOTTED: Final = 60  # evaluations; more => a line without dots
SMOOTHED: Final = 25  # a mean is over this part of the steps


@final
@dataclass(frozen=True)
class MetricCurve:
    """The headline metric of the evaluated checkpoints, with what the run had spent by then."""

    metric: Metric
    steps: Values
    values: Values

    def spent(self, run: StepColumns, cost: str) -> Values:
        """Returns the cost of each evaluated checkpoint; NaN for one of an unknown step."""
        costs = dict(zip(run["step"].tolist(), cost_column(run, cost).tolist(), strict=True))
        return np.array([costs.get(step, math.nan) for step in self.steps.tolist()])

    def reached(self, target: float) -> int | None:
        """Returns the place of the first checkpoint that is as good as `target`; None: none is."""
        good = self.values >= target if self.metric.higher_is_better else self.values <= target
        return int(np.argmax(good)) if good.any() else None

    @property
    def best(self) -> float:
        """The best value; NaN without one."""
        finite = self.values[np.isfinite(self.values)]
        if not len(finite):
            return float("nan")
        return float(finite.max() if self.metric.higher_is_better else finite.min())


def metric_curve(run: RunRecords) -> MetricCurve:
    """Returns the evaluated values of a run's headline metric."""
    metric = run.metric
    steps = np.array([number(record["step"]) for record in run.evaluations], dtype=np.float64)
    values = np.array([number(record.get(metric.key)) for record in run.evaluations])
    return MetricCurve(metric, steps, values.astype(np.float64))


def cost_column(run: StepColumns, cost: str) -> Column:
    """Returns the cost of a run up to each step."""
    match cost:
        case "seconds":
            return run.running("step_s")
        case "bytes":
            return run.running("up_bytes")
    return run["step"]


def smoothed(values: Column, window: int = 0) -> Column:
    """Returns the mean of each value and those before it; NaN where one of them is no number.

    Args:
        values: by step.
        window: steps of a mean; 0: a fixed part of all steps.
    """
    window = window or smoothing_window(len(values))
    sums = np.concatenate([np.zeros(1), np.cumsum(zeroed(values))])
    ends = np.arange(1, len(values) + 1)
    sizes = np.minimum(ends, np.full(len(values), window))
    return masked((sums[ends] - sums[ends - sizes]) / sizes, np.isfinite(values))


def smoothing_window(steps: int) -> int:
    """Returns the number of steps that a point of a loss curve is the mean of."""
    return max(1, steps // SMOOTHED)


def loss_charts(runs: Sequence[RunRecords]) -> list[Chart | None]:
    """Draws the training loss over each cost; of a single run with its dense prediction."""
    return [loss_chart(runs, cost) for cost in COSTS]


def loss_chart(runs: Sequence[RunRecords], cost: str) -> Chart | None:
    """Draws the training loss over one cost."""
    title, y = f"Training loss over {cost}", ChartAxis("training loss", may_be_log=True)
    if len(runs) > 1:
        lines = [loss_line(run, cost, run.name, place) for place, run in enumerate(runs)]
        return line_chart(title, shared_axis(cost), y, lines, legend=False)
    run = runs[0]
    line = loss_line(run, cost, "this run")
    dense = dense_line(run, cost)
    lines = [single_steps(run, cost), line, *dense]
    # The dense line would push the line of the run into a corner.
    axis = replace(COSTS[cost], may_be_log=cost == "bytes" and bool(dense))
    notes = [f"Mean of {smoothing_window(len(run.steps)):,} steps; faint: single steps."]
    notes += ["Dense: the same loss at each step, with uncompressed gradients."] * len(dense)
    return line_chart(title, axis, y, lines, " ".join(notes))


def loss_line(run: RunRecords, cost: str, name: str, place: int = 0) -> Series:
    """Returns the smoothed loss of a run."""
    spending = is_spent(run.steps, cost)
    loss = smoothed(run.steps["loss"])[spending]
    return Series(name, cost_column(run.steps, cost)[spending], loss, place % STYLES)


def single_steps(run: RunRecords, cost: str) -> Series:
    """Returns the loss of single steps, for the background."""
    spending = is_spent(run.steps, cost)
    loss = masked(run.steps["loss"], np.isfinite(run.steps["loss"]))
    return Series("steps", cost_column(run.steps, cost)[spending], loss[spending], is_faint=True)


def is_spent(steps: StepColumns, cost: str) -> Bool[np.ndarray, " steps"]:
    """Returns the steps that a line over a cost has points at: steps without an exchange send
    nothing, and would all be drawn above each other.
    """
    sent = steps["up_bytes"] > 0
    return sent if cost == "bytes" and sent.any() else np.full(len(steps), True)


def dense_line(run: RunRecords, cost: str) -> list[Series]:
    """Returns the loss of a dense run as predicted from this run, if its records allow it.

    The prediction takes the same loss at each step, so it is exact only where the codec costs no
    accuracy. Bytes are known for each step; seconds only if a plan has measured the links.
    """
    steps = run.steps
    if cost == "bytes" and steps.total("dense_bytes") > 1.01 * steps.total("up_bytes"):
        costs = steps.running("dense_bytes")
    elif cost == "seconds" and run.codecs and not run.codecs.why:
        costs = run.codecs.dense_s * np.arange(1, len(steps) + 1)
    else:
        return []
    spending = is_spent(steps, cost)
    loss = smoothed(steps["loss"])[spending]
    return [Series("dense, predicted", costs[spending], loss, 1, predicted=True)]


def metric_charts(runs: Sequence[RunRecords]) -> list[Chart | None]:
    """Draws the headline metric of the test split over each cost."""
    return [metric_chart(runs, cost) for cost in COSTS]


def metric_chart(runs: Sequence[RunRecords], cost: str) -> Chart | None:
    """Draws the headline metric over one cost."""
    metric = runs[0].metric
    name = metric.title or metric.shown
    lines = []
    for place, run in enumerate(runs):
        curve = metric_curve(run)
        if curve.metric.key == metric.key:
            spent = curve.spent(run.steps, cost)
            few = len(spent) <= DOTTED
            label = "this run" if len(runs) == 1 else run.name
            lines.append(Series(label, spent, curve.values, place % STYLES, dots=few))
    title = f"Test {name} over {cost}"
    y = ChartAxis(f"test {name}", percent=metric.percent, may_be_log=not metric.percent)
    axis = COSTS[cost] if len(runs) == 1 else shared_axis(cost)
    return line_chart(title, axis, y, lines, legend=len(runs) == 1)


def shared_axis(cost: str) -> ChartAxis:
    """Returns the axis of several runs, whose bytes may differ a hundredfold."""
    return replace(COSTS[cost], may_be_log=cost == "bytes")
