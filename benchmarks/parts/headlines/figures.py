"""Tables and pictures of the records of headlines.py."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, final

from atomo.core.plotting import pyplot_for
from parts.headlines.characters import SETTINGS, SHORT, STEPS, TRANSFORMERS
from parts.headlines.plan import DDP_POWER_SGD, METHODS, PARAMETERS, PUBLISHED
from parts.headlines.records import Record, records_of
from parts.local_steps.figures import between, markdown

__all__ = ["write_figures"]

PAGE: Final = "headlines.md"
DENSE: Final = "dense"
# Ends of the names of runs with Nesterov momentum, the second with passes in bfloat16.
NESTEROV: Final = ("-nesterov", "-nesterov-bf16")
Panel = tuple[Mapping[str, str], Sequence[tuple[str, Sequence[float], Sequence[float]]]]
COLOURS: Final = 10  # of matplotlib's lines
FLOAT_BYTES: Final = 4
LINK_BYTES: Final = 100e6 / 8  # of 100 Mbit/s, in a second


@final
class Study:
    """The records, and the figures that follow from them."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = records
        lengths = {r["epochs"] for r in records if r["task"] == "images"}
        self.lengths = sorted(lengths)

    def seeds(self, task: str, method: str) -> list[int]:
        """Returns the seeds with a record, in order."""
        chosen = (r for r in self.records if (r["task"], r["method"]) == (task, method))
        return sorted({record["seed"] for record in chosen})

    def epochs(self, method: str, seed: int, length: int) -> list[Record]:
        """Returns the records of the epochs of a run."""
        records = records_of(self.records, "images", method, seed)
        return [record for record in records if record["epochs"] == length]

    def finished(self, method: str, length: int) -> list[list[Record]]:
        """Returns the epochs of each seed that has all of them."""
        runs = (self.epochs(method, seed, length) for seed in self.seeds("images", method))
        return [run for run in runs if len(run) == length]

    def points(self, method: str) -> list[list[list[float]]]:
        """Returns the steps and losses of the transformer, for each seed."""
        seeds = self.seeds("characters", method)
        runs = [records_of(self.records, "characters", method, seed) for seed in seeds]
        return [records[-1]["points"] for records in runs]

    def last_losses(self, method: str) -> dict[int, float]:
        """Returns the loss of the transformer after the last step, by seed."""
        seeds = self.seeds("characters", method)
        return dict(zip(seeds, (points[-1][1] for points in self.points(method)), strict=True))

    def trial_loss(self, name: str) -> float | None:
        """Returns the last loss of a trial of the transformer; None: it was not trained."""
        records = records_of(self.records, "trials", name, 1)
        return float(records[-1]["points"][-1][1]) if records else None

    def sent_bytes(self, method: str) -> float:
        """Returns the bytes that a rank of the transformer sends in a step."""
        chosen = (r for r in self.records if (r["task"], r["method"]) == ("characters", method))
        return float(statistics.mean(record["sent_bytes"] for record in chosen))

    def step_s(self, method: str) -> float | None:
        """Returns the seconds of a step of the transformer over the link; None: not measured, or
        not trained.

        Passes and codec take the measured seconds, and the frame of a rank its time on the link,
        without overlap.
        """
        chosen = (r for r in self.records if (r["task"], r["method"]) == ("times", method))
        measured: list[float] = [record["step_s"] for record in chosen]
        if not measured or not self.points(method):
            return None
        return min(measured) + self.sent_bytes(method) / LINK_BYTES


def write_figures(records: Sequence[Record], docs: Path) -> None:
    """Writes the tables into the page, between their marks, and the picture beside it."""
    study, page = Study(records), docs / PAGE
    text = page.read_text()
    for length in study.lengths:
        text = between(text, f"images of {length} epochs", images_table(study, length))
    text = between(text, "characters", characters_table(study))
    text = between(text, "trials", trials_table(study))
    page.write_text(text)
    draw(study, docs / "headlines.png")


def images_table(study: Study, length: int) -> str:
    """Returns the accuracy after all epochs, by method."""
    rows = []
    for method in (*METHODS, DDP_POWER_SGD):
        seeds = study.seeds("images", method)
        runs = study.finished(method, length)
        if runs:
            baseline = study.finished(baseline_of(method), length)
            dense = {run[-1]["seed"]: run[-1]["top1"] for run in baseline}
            rows.append(finished_row(method, runs, dense))
        elif begun := [run for s in seeds if (run := study.epochs(method, s, length))]:
            cut = f"cut after {len(begun[0])}: {begun[0][-1]['top1']:.2%}"
            rows.append([f"`{method}`", cut, "", "", "", ""])
    heads = ["method", "top-1, by seed", "to dense, points", "training loss"]
    return markdown([*heads, "32-bit / sent", "noise damping"], rows)


def baseline_of(method: str) -> str:
    """Returns the run with dense gradients, and the same momentum and precision.

    >>> baseline_of("lss-nesterov-bf16"), baseline_of("lss")
    ('dense-nesterov-bf16', 'dense')
    """
    return DENSE + next(filter(method.endswith, NESTEROV), "")


def finished_row(
    method: str, runs: Sequence[list[Record]], dense: Mapping[int, float]
) -> list[str]:
    """Returns the row of a method; its difference to dense is that of equal seeds and momentum."""
    tops = {run[-1]["seed"]: run[-1]["top1"] for run in runs}
    cells = [f"`{method}`", ", ".join(f"{top:.2%}" for top in tops.values())]
    gaps = [100 * (tops[seed] - dense[seed]) for seed in tops.keys() & dense.keys()]
    own = method == baseline_of(method)
    cells.append(f"{statistics.mean(gaps):+.2f}" if gaps and not own else "")
    cells.append(f"{statistics.mean(run[-1]['train_loss'] for run in runs):.3f}")
    sent = statistics.mean(epoch["sent_bytes"] for run in runs for epoch in run)
    cells.append(f"{FLOAT_BYTES * PARAMETERS / sent:.1f}")
    damping = statistics.mean(epoch["damping"] for run in runs for epoch in run)
    return [*cells, "" if damping == 1 else f"{damping:.2f}"]


def characters_table(study: Study) -> str:
    """Returns losses at equal steps and at equal seconds, by method."""
    limit_s = least_seconds(study)
    trained = [method for method in TRANSFORMERS if study.points(method)]
    rows = [characters_row(study, method, limit_s) for method in trained]
    heads = ["method", "code", f"loss after {STEPS} steps", "to dense", "kB sent in a step"]
    seconds = "" if limit_s is None else f" {limit_s:.0f} s"
    return markdown([*heads, "s, 100 Mbit/s", f"loss after{seconds}"], rows)


def least_seconds(study: Study) -> float | None:
    """Returns the seconds of the fastest method for all steps; None: no step was timed."""
    means = [
        mean for method in TRANSFORMERS if study.points(method) and (mean := study.step_s(method))
    ]
    return STEPS * min(means) if means else None


def behind_dense(study: Study, method: str) -> str:
    """Returns the mean difference of the losses to those of dense, over the seeds of both."""
    last, dense = study.last_losses(method), study.last_losses(DENSE)
    gaps = [last[seed] - dense[seed] for seed in last.keys() & dense.keys()]
    return f"{statistics.mean(gaps):+.3f}" if gaps and method != DENSE else ""


def characters_row(study: Study, method: str, limit_s: float | None) -> list[str]:
    """Returns the row of a method."""
    runs = study.points(method)
    last = study.last_losses(method).values()
    if method == SHORT:
        steps = f"{runs[0][-1][0]} steps, a schedule of their own"
        mean = statistics.mean(last)
        return [f"`{method}`", f"`{TRANSFORMERS[method].code}`", "", "", "", steps, f"{mean:.3f}"]
    cells = [
        f"`{method}`",
        f"`{TRANSFORMERS[method].code}`",
        ", ".join(f"{loss:.3f}" for loss in last),
    ]
    cells.append(behind_dense(study, method))
    cells.append(f"{study.sent_bytes(method) / 1e3:.0f}")
    step_s = study.step_s(method)
    if step_s is None or limit_s is None:
        return [*cells, "", ""]
    loss = statistics.mean(loss_at(points, limit_s / step_s) for points in runs)
    return [*cells, f"{step_s * STEPS:.0f}", f"{loss:.3f}"]


def trials_table(study: Study) -> str:
    """Returns the losses of topk with both memories, by setting of AdamW."""
    rows = []
    for name in SETTINGS:
        own, residual = (study.trial_loss(f"{memory}: {name}") for memory in ("adam", "residual"))
        if own is not None and residual is not None:
            rows.append([name, f"{own:.3f}", f"{residual:.3f}", f"{own - residual:+.3f}"])
    return markdown(["setting", "`adam`", "`residual`", "difference"], rows)


def loss_at(points: Sequence[Sequence[float]], step: float) -> float:
    """Returns the loss of the last evaluation until a step.

    >>> loss_at([[100, 3.0], [200, 2.5]], 199.9)
    3.0
    """
    return next(loss for at, loss in reversed(points) if at <= max(step, points[0][0]))


def draw(study: Study, path: Path) -> None:
    """Draws accuracy by epochs, and losses of the transformer by seconds over the link; a panel
    without a curve is left out.
    """
    panels = [panel for panel in (image_panel(study), character_panel(study)) if panel[1]]
    pyplot = pyplot_for(str(path))
    figure, axes = pyplot.subplots(
        1, len(panels), figsize=(6.5 * len(panels), 5.2), layout="constrained", squeeze=False
    )
    for axis, (labels, curves) in zip(axes[0], panels, strict=True):
        for place, (name, abscissae, ordinates) in enumerate(curves):
            style = "--" if place >= COLOURS else "-"  # the colours begin anew
            axis.plot(abscissae, ordinates, style, label=name)
        axis.set(**labels)
        if "xscale" not in labels:  # epochs
            axis.locator_params(axis="x", integer=True)
        axis.grid(alpha=0.3)
        axis.legend(fontsize="x-small", ncols=1 + (len(curves) > COLOURS))
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


def image_panel(study: Study) -> Panel:
    """Returns the labels and the accuracy of the first seed of each longest run. Experiments are
    left out, except those with Nesterov momentum.
    """
    curves = []
    shown = [name for name in METHODS if name in PUBLISHED or name.endswith(NESTEROV)]
    for method in shown:
        for length in study.lengths[-1:]:
            run = study.epochs(method, 1, length)
            if len(run) > 1:
                tops = [100 * record["top1"] for record in run]
                curves.append((method, [record["epoch"] for record in run], tops))
    labels = {"xlabel": "epochs", "ylabel": "test top-1, %", "title": "ResNet-20 on CIFAR-10"}
    return labels, curves


def character_panel(study: Study) -> Panel:
    """Returns the labels and the losses of the first seed of each method."""
    curves = []
    for method in TRANSFORMERS:
        step_s, runs = study.step_s(method), study.points(method)
        if runs and step_s is not None:
            losses = [loss for _, loss in runs[0]]
            curves.append((method, [at * step_s for at, _ in runs[0]], losses))
    labels = {"xlabel": "seconds over 100 Mbit/s", "ylabel": "validation loss", "xscale": "log"}
    return {**labels, "title": "transformer of characters"}, curves
