"""The grid of a sweep: results by one or two settings, as tables and curves."""

import math
from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np

from atomo.report.charts import Chart, Series, line_chart
from atomo.report.curves import metric_curve
from atomo.report.pages import PageSection, PageTable
from atomo.report.records import RunRecords
from atomo.report.scales import ChartAxis
from atomo.report.verdicts import final_loss

__all__ = ["grid_section"]

Point = dict[str, str]
"""A value for each option of a sweep, read from the name of a trial."""


def grid_section(runs: Sequence[RunRecords]) -> list[PageSection]:
    """Returns the section of the grid; none if the runs are no trials of one sweep."""
    points = [point_of(run.name) for run in runs]
    options = list(points[0])
    if not options or any(list(point) != options for point in points):
        return []
    varying = [option for option in options if len({point[option] for point in points}) > 1]
    tables = [grid_table(runs, points, pair) for pair in combinations(varying, 2)]
    charts = [*grid_chart(runs, points, varying[0])] if len(varying) == 1 else []
    return [PageSection("Grid", charts=charts, tables=tables)] if tables or charts else []


def point_of(name: str) -> Point:
    """Returns the point that the name of a trial's folder has; empty for another name.

    >>> point_of("lr=0.5,code=svd(rank=3,values=fp16)")
    {'lr': '0.5', 'code': 'svd(rank=3,values=fp16)'}
    """
    parts: list[str] = []
    for piece in name.split(","):  # a comma within brackets belongs to a value
        if parts and parts[-1].count("(") > parts[-1].count(")"):
            parts[-1] += f",{piece}"
        else:
            parts.append(piece)
    pairs = [part.partition("=") for part in parts]
    if not all(mark for _, mark, _ in pairs):
        return {}
    return {option: value for option, _, value in pairs}


def result_of(run: RunRecords) -> float:
    """Returns the best test result of a run, or its final loss if none was evaluated."""
    best = metric_curve(run).best
    return best if math.isfinite(best) else final_loss(run) if len(run.steps) else float("nan")


def grid_table(
    runs: Sequence[RunRecords], points: Sequence[Point], pair: tuple[str, str]
) -> PageTable:
    """Returns the best result for each pair of values of two options."""
    down, across = ([*dict.fromkeys(point[option] for point in points)] for option in pair)
    rows = [
        [value, *(cell(runs, points, pair, (value, other)) for other in across)] for value in down
    ]
    columns = [f"{pair[0]} \\ {pair[1]}", *across]
    return PageTable(f"Results by {pair[0]} and {pair[1]}", columns, rows)


def cell(
    runs: Sequence[RunRecords], points: Sequence[Point], pair: tuple[str, str],
    values: tuple[str, str],
) -> str:  # fmt: skip
    """Returns the best result of the runs with two values; empty without one."""
    here = [run for run, point in zip(runs, points, strict=True)
            if (point[pair[0]], point[pair[1]]) == values]  # fmt: skip
    results = [result for result in map(result_of, here) if math.isfinite(result)]
    if not results:
        return "-"
    metric, tested = here[0].metric, any(len(run.evaluations) for run in here)
    best = max(results) if tested and metric.higher_is_better else min(results)
    return metric.text(best) if tested else f"{best:.4g}"


def grid_chart(
    runs: Sequence[RunRecords], points: Sequence[Point], option: str
) -> Iterator[Chart | None]:
    """Yields the chart of results over the values of one option, if they are numbers."""
    try:
        values = np.array([float(point[option]) for point in points])
    except ValueError:
        return
    order = np.argsort(values)
    results = np.array([result_of(run) for run in runs])[order]
    tested = any(len(run.evaluations) for run in runs)
    metric = runs[0].metric
    label = f"test {metric.title or metric.shown}" if tested else "final training loss"
    axis = ChartAxis(label, percent=tested and metric.percent, may_be_log=not tested)
    line = Series(option, values[order], results, dots=True)
    yield line_chart(f"Result by {option}", ChartAxis(option, may_be_log=True), axis, [line])
