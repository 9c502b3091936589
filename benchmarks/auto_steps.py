"""Step times with `--code auto`, with dense gradients and with single codecs, over limited links.

    python3 tools/virtual_cluster.py up --hosts 4 --rate 100mbit
    python3 benchmarks/auto_steps.py --out runs/auto-100mbit
    python3 tools/virtual_cluster.py down

Each contender is a job with a worker on each host and, with ParameterServer, a master on the first.
Contenders take turns. The figure is the median of all steps except the first few. `auto` keeps its
default error budget; fixed codecs have no budget.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Final

from atomo.config.comm_types import PARAMETER_SERVER, name_of_stored

ROOT: Final = Path(__file__).parent.parent
CLUSTER: Final = str(ROOT / "tools" / "virtual_cluster.py")
WARM_UP: Final = 5  # steps that do not count
CONTENDERS: Final = {
    "Allgather": ("sgd", "bf16", "qsgd", "svd(rank=3)", "topk(ratio=0.1)", "topk", "auto"),
    "Allreduce": ("sgd", "bf16", "auto"),
    PARAMETER_SERVER: ("sgd", "bf16", "qsgd", "svd(rank=3)", "topk(ratio=0.1)", "topk", "auto"),
}


def main() -> None:
    """Runs the jobs, and prints a table for each communicator."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument(
        "--hosts", default="clusters/virtual/hosts_address", help="empty: this machine"
    )
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--comm-types", nargs="*", type=name_of_stored, default=list(CONTENDERS))
    parser.add_argument("--options", nargs="*", default=[], help="more options of atomo train")
    options = parser.parse_args()
    for comm_type in options.comm_types:
        steps: dict[str, list[float]] = defaultdict(list)
        for turn in range(options.turns):
            for code in CONTENDERS[comm_type]:
                steps[code] += run(options, comm_type, code, turn)
        show(comm_type, {code: statistics.median(times) for code, times in steps.items()})
        print(lines_of(options.out / f"{comm_type}-auto-0"), flush=True)


UNBOUND = "--auto-share=1e6"  # no time limit: a few steps stand for a long run


def run(options: argparse.Namespace, comm_type: str, code: str, turn: int) -> list[float]:
    """Runs one job; returns the seconds of its steps."""
    folder = options.out / f"{comm_type}-{''.join(c for c in code if c.isalnum())}-{turn}"
    shutil.rmtree(folder, ignore_errors=True)
    words = [
        str(ROOT / "run_pytorch.sh"), "--n", str(options.workers + (comm_type == PARAMETER_SERVER)),
        "--comm-type", comm_type, "--code", code, "--max-steps", str(options.steps),
        "--eval-freq", "100000", "--evaluator", "none", "--threads", "1",
        "--train-dir", str(folder.absolute()), *options.options,
        *([UNBOUND] if code == "auto" else []),
    ]  # fmt: skip
    there = [sys.executable, CLUSTER, "exec", "h1"] if options.hosts else []
    hosts = ["--hostfile", str(ROOT / options.hosts)] if options.hosts else []
    subprocess.run([*there, "bash", *words, *hosts], check=True, stdout=subprocess.DEVNULL)
    lines = (folder / "metrics.jsonl").read_text().splitlines()[WARM_UP:]
    return [json.loads(line)["step_s"] for line in lines]


def show(comm_type: str, medians: dict[str, float]) -> None:
    """Prints a row for each contender, the fastest first."""
    print(f"\n| {comm_type} | ms a step | over dense |\n| --- | --- | --- |")
    for code, seconds in sorted(medians.items(), key=lambda pair: pair[1]):
        print(f"| `{code}` | {1e3 * seconds:.1f} | {seconds / medians['sgd']:.2f} |")


def lines_of(folder: Path) -> str:
    """Returns the choice of `auto` and its prediction, as JSON."""
    record = json.loads((folder / "auto.json").read_text())
    names = ("step_s", "dense_s", "error", "budget", "memory", "codes", "took_s")
    return json.dumps({name: record[name] for name in names})


if __name__ == "__main__":
    main()
