"""Comparison of `--fusion auto` with the other groupings of gradients.

    python benchmarks/fusion.py [--hostfile clusters/virtual/hosts_address] [--code topk sgd ...]

In each round, every grouping trains for several steps, one run after the other. The next round
starts with another grouping, so that changes of the machine's load affect all groupings. There is
one row for each codec: the median milliseconds of a step with each grouping, over all rounds and
all steps except the first; the best other grouping; and the ratio of auto's time to that of the
best.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

GROUPINGS: Final = ("auto", "layer", "one", "mergecomp", "bytes:4")
CODES: Final = ("topk(ratio=0.01)", "qsgd", "svd(rank=3)")
WARM_UP: Final = 5  # first steps of a run, which do not count


def main() -> None:
    """Trains with each grouping, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--code", nargs="*", default=CODES)
    parser.add_argument("--fusion", nargs="*", default=GROUPINGS)
    parser.add_argument("--network", default="LeNet")
    parser.add_argument("--dataset", default="Digits")
    parser.add_argument("--data-dir", default="data")
    parser.add_argument("--comm-type", default="Allgather")
    parser.add_argument("--n", type=int, default=2)
    parser.add_argument("--hostfile", default="")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(f"| {options.network}, {options.n} ranks, {options.comm_type}: ms a step | ", end="")
    print(" | ".join([*options.fusion, "best other", "auto / it"]), "|")
    print("|---" * (len(options.fusion) + 3) + "|", flush=True)
    for code in options.code:
        medians = {
            grouping: statistics.median(times)
            for grouping, times in measured(options, code).items()
        }
        alternatives = {grouping: ms for grouping, ms in medians.items() if grouping != "auto"}
        best = min(alternatives, key=alternatives.__getitem__, default="")
        cells = [f"{ms:.1f}" for ms in medians.values()]
        ratio = f"{medians['auto'] / alternatives[best]:.2f}" if best and "auto" in medians else ""
        print(f"| {code} | {' | '.join(cells)} | {best} | {ratio} |", flush=True)


def measured(options: argparse.Namespace, code: str) -> dict[str, list[float]]:
    """Returns the milliseconds of all steps that count, by grouping."""
    groupings = [*options.fusion]
    times: dict[str, list[float]] = {grouping: [] for grouping in groupings}
    for turn in range(options.rounds):
        first = turn % len(groupings)
        for grouping in (*groupings[first:], *groupings[:first]):
            times[grouping] += steps_ms(options, code, grouping)
    return times


def steps_ms(options: argparse.Namespace, code: str, grouping: str) -> list[float]:
    """Runs one job; returns the milliseconds of its steps."""
    with tempfile.TemporaryDirectory(dir=".") as folder:
        words = {
            "n": options.n, "network": options.network, "dataset": options.dataset,
            "comm-type": options.comm_type, "hostfile": options.hostfile,
            "data-dir": options.data_dir,
            "batch-size": options.batch_size, "max-steps": options.steps, "code": code,
            "fusion": grouping, "evaluator": "none", "eval-freq": 100_000, "train-dir": folder,
        }  # fmt: skip
        if grouping == "auto":
            words["auto-share"] = 1e6  # no time limit: a few steps stand for a long run
        flags = [f"--{name}={value}" for name, value in words.items()]
        done = subprocess.run(
            [sys.executable, "-m", "atomo", "train", *flags],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
        lines = (Path(folder) / "metrics.jsonl").read_text().splitlines()
        return [1e3 * json.loads(line)["step_s"] for line in lines[WARM_UP:]]


if __name__ == "__main__":
    main()
