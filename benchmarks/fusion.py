"""Comparison of `--fusion auto` with the other groupings of gradients, side by side in one run.

    python benchmarks/fusion.py [--hostfile clusters/virtual/hosts_address] [--code topk sgd ...]

One run a way, one after the other, so that load that changes meets all of them: in each round every
way trains for some steps, and the next round begins with another one. A row a codec: the median
milliseconds of a step with each way, over all rounds and all but the first steps; the best other
way; and auto's time over its.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

WAYS: Final = ("auto", "layer", "one", "mergecomp", "bytes:4")
CODES: Final = ("topk(ratio=0.01)", "qsgd", "svd(rank=3)")
WARM_UP: Final = 5  # steps of a run that are not counted


def main() -> None:
    """Trains and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--code", nargs="*", default=CODES)
    parser.add_argument("--fusion", nargs="*", default=WAYS)
    parser.add_argument("--network", default="LeNet")
    parser.add_argument("--dataset", default="Digits")
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
        medians = {way: statistics.median(times) for way, times in measured(options, code).items()}
        others = {way: ms for way, ms in medians.items() if way != "auto"}
        best = min(others, key=others.__getitem__, default="")
        cells = [f"{ms:.1f}" for ms in medians.values()]
        ratio = f"{medians['auto'] / others[best]:.2f}" if best and "auto" in medians else ""
        print(f"| {code} | {' | '.join(cells)} | {best} | {ratio} |", flush=True)


def measured(options: argparse.Namespace, code: str) -> dict[str, list[float]]:
    """Milliseconds of all steps that count, by the way."""
    ways = [*options.fusion]
    times: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(options.rounds):
        first = turn % len(ways)
        for way in (*ways[first:], *ways[:first]):
            times[way] += steps_ms(options, code, way)
    return times


def steps_ms(options: argparse.Namespace, code: str, way: str) -> list[float]:
    """Returns those of one run."""
    with tempfile.TemporaryDirectory(dir=".") as folder:
        words = {
            "n": options.n, "network": options.network, "dataset": options.dataset,
            "comm-type": options.comm_type, "hostfile": options.hostfile,
            "batch-size": options.batch_size, "max-steps": options.steps, "code": code,
            "fusion": way, "evaluator": "none", "eval-freq": 100_000, "train-dir": folder,
        }  # fmt: skip
        if way == "auto":
            words["auto-share"] = 1e6  # few steps stand for many
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
