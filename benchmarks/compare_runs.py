"""Draws the loss and the test accuracy of several runs into one picture, and prints a table.

python benchmarks/compare_runs.py runs/a runs/b --png docs/results-x.png
"""

import argparse
import json
from collections.abc import Callable, Mapping
from itertools import accumulate
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from atomo.core.plotting import pyplot_for

# The x axis of the plots: its scale, and the increment of one step.
AXES: Final[Mapping[str, tuple[str, Callable[[dict[str, Any]], float]]]] = MappingProxyType(
    {
        "step": ("linear", lambda step: 1),
        "gradients sent, MB": ("log", lambda step: step["up_bytes"] / 1e6),
        "seconds of training": ("linear", lambda step: step["step_s"]),
    }
)
SMOOTHING = 0.95  # factor of the exponential mean over steps; higher => smoother


def main() -> None:
    """Prints a row for each run, and draws the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--png", type=Path)
    parser.add_argument("--target", type=float, default=98, help="an accuracy, %%")
    parser.add_argument("--lowest", type=float, help="where the axis of accuracy begins, %%")
    options = parser.parse_args()
    pyplot = pyplot_for(str(options.png)) if options.png else None
    reached = f"to {options.target:g} %: step, MB, s"
    print(f"| run | steps | final top-1 | loss, last 100 steps | dense / sent | s | {reached} |")
    print("|---|---|---|---|---|---|---|")
    for run in options.runs:
        print(table_row(run, options.target / 100))
    if pyplot is not None:
        draw(pyplot, options.runs, options.png, options.lowest)


def read(path: Path) -> list[dict[str, Any]]:
    """Reads the records of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def table_row(run: Path, target: float) -> str:
    """Returns the Markdown row of a run."""
    steps, tests = read(run / "metrics.jsonl"), read(run / "evaluations.jsonl")
    ratio = total(steps, "dense_bytes") / total(steps, "up_bytes")
    last = [step["loss"] for step in steps[-100:]]
    return (
        f"| {run.name} | {len(steps)} | {tests[-1]['top1']:.2%} | {sum(last) / len(last):.3f} "
        f"| {ratio:.1f} | {total(steps, 'step_s'):.0f} | {spent_until(target, steps, tests)} |"
    )


def total(steps: list[dict[str, Any]], name: str) -> float:
    """Returns the sum of a figure over steps."""
    return float(sum(step[name] for step in steps))


def spent_until(target: float, steps: list[dict[str, Any]], tests: list[dict[str, Any]]) -> str:
    """Returns the step, the MB sent and the seconds at the first evaluation with this accuracy."""
    reached = next((test["step"] for test in tests if test["top1"] >= target), None)
    if reached is None:
        return "never"
    before = [step for step in steps if step["step"] <= reached]
    return f"{reached}, {total(before, 'up_bytes') / 1e6:.0f}, {total(before, 'step_s'):.0f}"


def draw(pyplot: Any, runs: list[Path], png: Path, lowest: float | None) -> None:
    """Draws the loss and the test accuracy over steps, bytes and seconds."""
    figure, axes = pyplot.subplots(
        2, len(AXES), figsize=(13, 7), sharey="row", sharex="col", layout="constrained"
    )
    for run in runs:
        steps, tests = read(run / "metrics.jsonl"), read(run / "evaluations.jsonl")
        loss = smooth([step["loss"] for step in steps])
        top1 = [100 * test["top1"] for test in tests]
        at = {step["step"]: place for place, step in enumerate(steps)}
        for (_, measured), (upper, lower) in zip(AXES.values(), axes.T, strict=True):
            spent = list(accumulate(measured(step) for step in steps))
            upper.plot(spent, loss, label=run.name)
            lower.plot([spent[at[test["step"]]] for test in tests], top1, marker=".")
    axes[0][0].set(ylabel=f"training loss (smoothed {SMOOTHING})", yscale="log")
    axes[1][0].set(ylabel="test top-1, %", ylim=(lowest, None))
    for (label, (scale, _)), (upper, lower) in zip(AXES.items(), axes.T, strict=True):
        lower.set(xlabel=label, xscale=scale)
        for axis in (upper, lower):
            axis.grid(alpha=0.3)
    axes[0][0].legend()
    figure.savefig(png, dpi=100)
    pyplot.close(figure)


def smooth(values: list[float]) -> list[float]:
    """Returns the exponential mean with bias correction."""
    mean, weight, out = 0.0, 0.0, []
    for value in values:
        mean = SMOOTHING * mean + (1 - SMOOTHING) * value
        weight = SMOOTHING * weight + (1 - SMOOTHING)
        out.append(mean / weight)
    return out


if __name__ == "__main__":
    main()
