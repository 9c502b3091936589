"""The page of several runs: overlaid curves, costs to a target, and the settings that differ."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from atomo.core.distribution import versions
from atomo.core.number_text import bytes_text, duration_text
from atomo.errors import ConfigError
from atomo.report.charts import STYLES, Chart, style_classes
from atomo.report.columns import read_records
from atomo.report.curves import loss_charts, metric_charts, metric_curve
from atomo.report.pages import Page, PageSection, PageTable, Sentence, page_html
from atomo.report.records import RunRecords, read_run
from atomo.report.sweep_grid import grid_section
from atomo.report.verdicts import MEASURED, final_loss
from atomo.workloads import Metric

__all__ = ["MOST_RUNS", "comparison_html", "runs_of_sweep"]

MOST_RUNS: Final = 50
SWEEP_FILE: Final = "sweep.jsonl"
NEAR: Final = 0.995  # a target that most runs reach: this share of the best common result
UNCOMPRESSED: Final = 0.02  # bytes within this share of the dense ones
PLACES: Final = {"train_dir", "data_dir"}  # settings that say where, and not what


def comparison_html(folders: Sequence[Path], target: float | None = None) -> str:
    """Returns the page of several runs.

    Args:
        folders: 2 to `MOST_RUNS` folders.
        target: value of the headline metric, as the task shows it (98.5 for 98.5 %); None: one
            that all evaluated runs reach.

    Raises:
        ConfigError: a folder is missing, or there are too few or too many.
    """
    if not 2 <= len(folders) <= MOST_RUNS:
        raise ConfigError(f"{len(folders)} runs: give 2 to {MOST_RUNS} to compare")
    runs = [read_run(folder) for folder in folders]
    metric = runs[0].metric
    wanted = common_target(runs) if target is None else target / (100 if metric.percent else 1)
    reached = {run.folder: cost_of_target(run, wanted) for run in runs}
    ordered = sorted(runs, key=lambda run: reached[run.folder][0])
    remarks = [Sentence(f"{run.name}: {remark}") for run in runs for remark in run.remarks]
    sections = [
        costs_section(ordered, wanted, reached),
        curves_section(runs),
        *grid_section(runs),
        settings_section(ordered),
        *([PageSection("Files", remarks)] if remarks else []),
    ]
    return page_html(
        Page(
            title=f"{len(runs)} runs",
            subtitle=", ".join(run.name for run in runs),
            verdict=comparison_verdict(ordered, wanted, reached),
            sections=sections,
            foot=f"Written by {versions()}",
        )
    )


def runs_of_sweep(folder: Path) -> list[Path]:
    """Returns the folders of a sweep's trials, in the order of its results; empty for any other
    folder.

    Raises:
        OSError: the results cannot be read.
    """
    records, _ = read_records(folder / SWEEP_FILE)
    names = [str(record.get("name", "")) for record in records]
    # A name with a separator would lead out of the folder.
    return [folder / name for name in dict.fromkeys(names) if is_trial(folder, name)]


def is_trial(folder: Path, name: str) -> bool:
    """Returns True if a name is that of a folder within the sweep's."""
    return name not in ("", ".", "..") and "/" not in name and (folder / name).is_dir()


def common_target(runs: Sequence[RunRecords]) -> float:
    """Returns a value of the metric that all evaluated runs reach, close to the worst of their
    best; NaN if none was evaluated.
    """
    metric = runs[0].metric
    best = [curve.best for curve in map(metric_curve, runs) if curve.metric.key == metric.key]
    finite = [value for value in best if math.isfinite(value)]
    if not finite:
        return float("nan")
    return NEAR * min(finite) if metric.higher_is_better else max(finite) / NEAR


def cost_of_target(run: RunRecords, target: float) -> tuple[float, float, float]:
    """Returns seconds, steps and bytes until a run's checkpoints reach the target; infinite if
    none does.
    """
    curve = metric_curve(run)
    place = curve.reached(target)
    if place is None:
        return float("inf"), float("inf"), float("inf")
    costs = [float(curve.spent(run.steps, name)[place]) for name in ("seconds", "steps", "bytes")]
    seconds, steps, sent = (cost if math.isfinite(cost) else float("inf") for cost in costs)
    return seconds, steps, sent


Reached = Mapping[Path, tuple[float, float, float]]


def comparison_verdict(
    ordered: Sequence[RunRecords], target: float, reached: Reached
) -> list[Sentence]:
    """States which run reached the target first, and how much sooner than the dense run."""
    first, metric = ordered[0], ordered[0].metric
    seconds = reached[first.folder][0]
    if not math.isfinite(seconds):
        return [Sentence("No run has an evaluated checkpoint that reaches the target.", MEASURED)]
    goal = f"{metric.title or metric.shown} {metric.text(target)}"
    text = f"{first.name} reached {goal} first, after {duration_text(seconds)} of training"
    dense = next((run for run in ordered if is_dense(run)), None)
    sentences = [Sentence(f"{text}.", MEASURED)]
    if dense is not None and dense is not first:
        sentences.append(sooner(first, dense, goal, reached))
    elif dense is first and len(ordered) > 1:
        sentences.append(Sentence("Its gradients are uncompressed: compression did not pay here.",
                                  MEASURED))  # fmt: skip
    return sentences


def sooner(first: RunRecords, dense: RunRecords, goal: str, reached: Reached) -> Sentence:
    """Compares the first run with the dense run."""
    seconds, dense_s = reached[first.folder][0], reached[dense.folder][0]
    if not math.isfinite(dense_s):
        return Sentence(f"{dense.name}, uncompressed, did not reach {goal}.", MEASURED)
    factor = dense_s / seconds if seconds else float("inf")
    text = f"Compression paid: {factor:.3g} times sooner to {goal} than {dense.name}, uncompressed."
    return Sentence(text, MEASURED)


def is_dense(run: RunRecords) -> bool:
    """Returns True if a run sent its gradients uncompressed."""
    dense, sent = run.steps.total("dense_bytes"), run.steps.total("up_bytes")
    return bool(sent) and abs(dense / sent - 1) < UNCOMPRESSED


def costs_section(ordered: Sequence[RunRecords], target: float, reached: Reached) -> PageSection:
    """Returns the table of runs, the soonest to the target first."""
    metric = ordered[0].metric
    goal = f" to {metric.text(target)}" if math.isfinite(target) else " to the target"
    columns = ("run", f"time{goal}", f"steps{goal}", f"sent{goal}", f"best {metric.shown}",
               "final loss", "steps", "time", "sent", "ratio")  # fmt: skip
    rows = [row_of(run, reached[run.folder], metric) for run in ordered]
    why = "Time is that of training steps, without checkpoints and evaluations."
    return PageSection(
        "Costs", [Sentence(why)], tables=[PageTable("Runs, the soonest first", columns, rows)]
    )


def row_of(run: RunRecords, reached: tuple[float, float, float], metric: Metric) -> list[str]:
    """Returns the row of a run."""
    seconds, steps, sent = reached
    best, total = metric_curve(run).best, run.steps.total("up_bytes")
    return [
        run.name,
        duration_text(seconds) if math.isfinite(seconds) else "never",
        f"{steps:,.0f}" if math.isfinite(steps) else "-",
        bytes_text(sent) if math.isfinite(sent) else "-",
        metric.text(best) if math.isfinite(best) else "-",
        f"{final_loss(run):.4g}" if len(run.steps) else "-",
        f"{run.steps['step'][-1]:,.0f}" if len(run.steps) else "0",
        duration_text(run.steps.total("step_s")),
        bytes_text(total),
        f"{run.steps.total('dense_bytes') / total:.3g}" if total else "-",
    ]


def curves_section(runs: Sequence[RunRecords]) -> PageSection:
    """Returns the overlaid curves, with one legend for all of them."""
    charts: list[Chart | None] = [*loss_charts(runs), *metric_charts(runs)]
    legend = [(style_classes(place % STYLES), run.name) for place, run in enumerate(runs)]
    return PageSection("Curves", charts=charts, legend=legend)


def settings_section(runs: Sequence[RunRecords]) -> PageSection:
    """Returns the settings that differ between the runs."""
    names = dict.fromkeys(name for run in runs for name in run.settings if name not in PLACES)
    differing = [name for name in names if differs(name, runs)]
    if not differing:
        return PageSection("Settings that differ", [Sentence("None do.")])
    rows = [[run.name, *(str(run.settings.get(name, "")) for name in differing)] for run in runs]
    table = PageTable("Settings that differ", ("run", *differing), rows, is_text=True)
    return PageSection("Settings that differ", tables=[table])


def differs(name: str, runs: Sequence[RunRecords]) -> bool:
    """Returns True if not all runs have the same value of a setting."""
    values: list[Any] = [run.settings.get(name) for run in runs]
    return any(value != values[0] for value in values)
