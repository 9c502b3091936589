"""Draws the loss and the test accuracy of several runs into one picture, and prints a table.

python benchmarks/compare_runs.py runs/a runs/b --png docs/results-x.png
"""

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")  # no screen

from matplotlib import pyplot

SMOOTHING = 0.95  # of the exponential mean that is drawn over the steps; higher => smoother


def main() -> None:
    """Reads the runs, prints a row each, draws them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--png", type=Path)
    options = parser.parse_args()
    print(
        "| run | steps | final top-1 | mean loss, last 100 steps | bytes per step | dense | ratio |"
    )
    print("|---|---|---|---|---|---|---|")
    for run in options.runs:
        print(table_row(run))
    if options.png:
        draw(options.runs, options.png)


def read(path: Path) -> list[dict[str, Any]]:
    """The records of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def table_row(run: Path) -> str:
    """One run in a row of Markdown."""
    steps, tests = read(run / "metrics.jsonl"), read(run / "evaluations.jsonl")
    up = sum(step["up_bytes"] for step in steps) / len(steps)
    dense = sum(step["dense_bytes"] for step in steps) / len(steps)
    last = [step["loss"] for step in steps[-100:]]
    return (
        f"| {run.name} | {len(steps)} | {tests[-1]['top1']:.2%} | {sum(last) / len(last):.3f} "
        f"| {up:,.0f} | {dense:,.0f} | {dense / up:.1f} |"
    )


def draw(runs: list[Path], png: Path) -> None:
    """Loss by step on the left, test accuracy by step on the right."""
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for run in runs:
        steps, tests = read(run / "metrics.jsonl"), read(run / "evaluations.jsonl")
        left.plot([s["step"] for s in steps], smooth([s["loss"] for s in steps]), label=run.name)
        right.plot([t["step"] for t in tests], [100 * t["top1"] for t in tests], marker=".")
    left.set(xlabel="step", ylabel=f"training loss (smoothed {SMOOTHING})", yscale="log")
    right.set(xlabel="step", ylabel="test top-1, %")
    left.legend()
    figure.savefig(png, dpi=100)


def smooth(values: list[float]) -> list[float]:
    """The exponential mean, corrected for its beginning."""
    mean, weight, out = 0.0, 0.0, []
    for value in values:
        mean = SMOOTHING * mean + (1 - SMOOTHING) * value
        weight = SMOOTHING * weight + (1 - SMOOTHING)
        out.append(mean / weight)
    return out


if __name__ == "__main__":
    main()
