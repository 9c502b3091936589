"""Cost of fault tolerance in a training without faults.

    .venv/bin/python benchmarks/reliability_cost.py              # four minutes
    .venv/bin/python benchmarks/reliability_cost.py --pairs 20 --minutes 60

Jobs run on this machine, one after the other: with the defaults of `atomo train`, and with
`--with-ft no`, where the first death of a process ends the job and no rank asks MPI for failures.
The order of the two changes from pair to pair. The figures are the ratio of their median step times
and the ratio of the processor time of their steps, which depends less on other load on the machine.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from atomo.config.comm_rules import has_master
from atomo.config.comm_types import PARAMETER_SERVER

WITHOUT = "--mpi-args=--with-ft no"
FIRST = 20  # steps of compilation and cold caches


@final
@dataclass(frozen=True)
class Steps:
    """Times of a job's steps."""

    median_s: float
    processor_s: float  # of all processes of the job, including start and end, per step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument(
        "--minutes", type=float, default=4.0, help="time limit; no pair starts that would exceed it"
    )
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--network", default="LeNet")
    parser.add_argument("--comm-type", default=PARAMETER_SERVER)
    parser.add_argument("--code", default="svd")
    options = parser.parse_args()
    ranks = options.workers + has_master(options.comm_type)
    words = [f"--n={ranks}", f"--comm-type={options.comm_type}", f"--code={options.code}"]
    words += [f"--network={options.network}", "--threads=1"]
    words += [f"--max-steps={options.steps}", "--epochs=100000", "--batch-size=16", "--lr=0.005"]
    words += ["--evaluator=none", f"--eval-freq={options.steps}"]
    step, processor = list[float](), list[float]()
    began = time.monotonic()
    for number in range(options.pairs):
        spent_s = time.monotonic() - began
        if number and spent_s * (number + 1) / number > 60 * options.minutes:
            break
        arms = [[*words], [*words, WITHOUT]]
        results = [taken(arm) for arm in (arms if number % 2 else reversed(arms))]
        tolerant, plain = results if number % 2 else reversed(results)
        step.append(tolerant.median_s / plain.median_s)
        processor.append(tolerant.processor_s / plain.processor_s)
        print(f"{1e3 * tolerant.median_s:.2f} ms with, {1e3 * plain.median_s:.2f} ms without: "
              f"{step[-1]:.3f}; processor time {processor[-1]:.3f}", flush=True)  # fmt: skip
    print(f"\n| {len(step)} pairs of {options.steps} steps | with it, over without |")
    print(f"| --- | --- |\n| a step | {quartiles(step)} |")
    print(f"| processor time | {quartiles(processor)} |")


def taken(words: Sequence[str]) -> Steps:
    """Runs a job; returns the times of its steps."""
    with tempfile.TemporaryDirectory() as folder:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, "-m", "atomo", "train", *words, f"--train-dir={folder}/run"],
            env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL, check=True,
        )  # fmt: skip
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        text = (Path(folder) / "run" / "metrics.jsonl").read_text()
    steps = [json.loads(line)["step_s"] for line in text.splitlines()]
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Steps(statistics.median(steps[FIRST:]), spent / len(steps))


def quartiles(ratios: Sequence[float]) -> str:
    """Returns the median and the quartiles of ratios."""
    if len(ratios) < 2:
        return f"{ratios[0]:.3f}"
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return f"median {middle:.3f}, half between {low:.3f} and {high:.3f}"


if __name__ == "__main__":
    main()
