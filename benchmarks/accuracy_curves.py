"""Draws test accuracy over seconds of training, for the runs of time_to_accuracy.py.

python benchmarks/accuracy_curves.py runs/time_to_accuracy/* --png docs/results-lenet-seconds.png
"""

import argparse
from itertools import accumulate
from pathlib import Path
from typing import Any

from atomo.core.plotting import pyplot_for
from atomo.report.columns import read_records


def main() -> None:
    """Reads the folders and draws a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--png", type=Path, required=True)
    parser.add_argument("--target", type=float, default=98.5, help="a line at this accuracy, %%")
    parser.add_argument("--lowest", type=float, default=90, help="where the axis begins, %%")
    options = parser.parse_args()
    draw(pyplot_for(str(options.png)), options)


def draw(pyplot: Any, options: argparse.Namespace) -> None:
    """Draws one picture of all runs."""
    figure, axis = pyplot.subplots(figsize=(8, 5), layout="constrained")
    for run in options.runs:
        axis.plot(*curve(run), marker=".", label=run.name.replace("-", " "))
    axis.axhline(options.target, color="gray", linestyle=":")
    axis.set(xlabel="seconds of training", ylabel="test top-1, %", xscale="log")
    axis.set_ylim(options.lowest, 100)
    for set_formatter in (axis.xaxis.set_major_formatter, axis.xaxis.set_minor_formatter):
        set_formatter("{x:g}")
    axis.grid(alpha=0.3)
    axis.legend()
    figure.savefig(options.png, dpi=100)
    pyplot.close(figure)


def curve(run: Path) -> tuple[list[float], list[float]]:
    """Returns the seconds of training and the accuracy, %, of each evaluation of a run."""
    steps, _ = read_records(run / "metrics.jsonl")
    tests, _ = read_records(run / "evaluations.jsonl")
    spent = list(accumulate(step["step_s"] for step in steps))
    at = {step["step"]: place for place, step in enumerate(steps)}
    return [spent[at[test["step"]]] for test in tests], [100 * test["top1"] for test in tests]


if __name__ == "__main__":
    main()
