"""Seconds to an accuracy over slow links, with Atomo and with PyTorch's DDP.

    python3 tools/virtual_cluster.py up --hosts 4 --rate 100mbit
    python benchmarks/time_to_accuracy.py --data-dir data --out runs/tta [CONTENDER ...]

Every contender trains the same model from the same initial weights, with a worker on each host and
64 images per worker, in the same order. A parameter server's master shares the first host with a
worker. Times are those of training without evaluations, which take place every 25 steps. There is
one row for each contender and seed: the median step, and the steps and seconds to each accuracy.
With several seeds the contenders take turns. Near the end, seeds differ by more than codecs:
compare contenders with `--seeds 1 2 3` and `--target 0.98 0.985`.
"""

import argparse
import shutil
import statistics
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from atomo.report.columns import read_records

ROOT: Final = Path(__file__).parent.parent
CLUSTER: Final = str(ROOT / "tools" / "virtual_cluster.py")
DDP: Final = str(ROOT / "benchmarks" / "ddp_train.py")
EVERY: Final = 25  # steps between two evaluations


@dataclass(frozen=True)
class Contender:
    """A training method: DDP with a hook, or `atomo train` with options."""

    hook: str = ""
    options: tuple[str, ...] = ()
    master: bool = False
    """True if a master shares the first host with a worker."""


def server(*options: str) -> Contender:
    """Returns a contender with a parameter server."""
    return Contender(options=options, master=True)


CONTENDERS: Final[Mapping[str, Contender]] = MappingProxyType(
    {
        "DDP": Contender("none"),
        "DDP fp16": Contender("fp16"),
        "DDP bf16": Contender("bf16"),
        "DDP PowerSGD 4": Contender("powersgd:4"),
        "DDP atomo svd": Contender("atomo:svd(rank=3)"),
        "DDP atomo topk": Contender("atomo:topk(ratio=0.01)"),
        "DDP atomo dgc": Contender("atomo:dgc(ratio=0.01)"),
        "DDP atomo PowerSGD 4": Contender("atomo:powersgd(rank=4)"),
        "DDP atomo ACPSGD 4": Contender("atomo:acpsgd(rank=4)"),
        "server sgd": server("--code", "sgd"),
        "server svd": server("--code", "svd(rank=3)"),
        "server topk": server("--code", "topk(ratio=0.01)"),
        "server dgc": server("--code", "dgc(ratio=0.01)"),
        "server svd, weights": server("--code", "svd(rank=3)", "--down", "weights"),
        "PowerSGD 4": Contender(options=("--comm-type", "PowerSGD", "--svd-rank", "4")),
        "PowerSGD 2": Contender(options=("--comm-type", "PowerSGD", "--svd-rank", "2")),
        "PowerSGD 1": Contender(options=("--comm-type", "PowerSGD", "--svd-rank", "1")),
        "ACPSGD 4": Contender(options=("--comm-type", "ACPSGD", "--svd-rank", "4")),
        "Allreduce sgd": Contender(options=("--comm-type", "Allreduce", "--code", "sgd")),
        "Allgather svd": Contender(options=("--comm-type", "Allgather", "--code", "svd(rank=3)")),
        "Allgather topk": Contender(
            options=("--comm-type", "Allgather", "--code", "topk(ratio=0.01)")
        ),
        "Allgather topk 0.003": Contender(
            options=("--comm-type", "Allgather", "--code", "topk(ratio=0.003, values=bf16)")
        ),
        "Allgather dgc": Contender(
            options=("--comm-type", "Allgather", "--code", "dgc(ratio=0.01)")
        ),
    }
)


def main() -> None:
    """Trains with each contender, and prints a row for each."""
    options = parse()
    hosts = hosts_of(options.hosts)
    heads = "".join(f" steps to {target:.1%} | s to it |" for target in options.target)
    print(f"| {options.network}, {options.dataset} | seed | s per step |{heads} best |")
    print("|---" * (4 + 2 * len(options.target)) + "|", flush=True)
    for seed in options.seeds:
        for name in options.contenders or CONTENDERS:
            folder = options.out / f"{name.replace(' ', '-').replace(',', '')}-{seed}"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            contender = CONTENDERS[name]
            train = with_ddp if contender.hook else with_atomo
            train(options, contender, hosts, seed, folder)
            print(f"| {name} | {seed} | {row(folder, options.target)} |", flush=True)


def parse() -> argparse.Namespace:
    """Returns the options."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("contenders", nargs="*", metavar="CONTENDER", help=", ".join(CONTENDERS))
    parser.add_argument("--hosts", type=Path, default=Path("clusters/virtual/hosts_address"))
    parser.add_argument("--data-dir", default="data")
    parser.add_argument("--network", default="LeNet")
    parser.add_argument("--dataset", default="MNIST")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--target", type=float, nargs="+", default=[0.985])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--out", type=Path, default=Path("runs/time_to_accuracy"))
    options = parser.parse_args()
    for name in options.contenders:
        if name not in CONTENDERS:
            parser.error(f"unknown contender {name!r}; choose from {', '.join(CONTENDERS)}")
    return options


def hosts_of(file: Path) -> list[str]:
    """Returns the addresses in a file of hosts."""
    lines = (line.split() for line in file.read_text().splitlines())
    return [words[0] for words in lines if words and not words[0].startswith("#")]


def on_host(number: int, *words: str) -> list[str]:
    """Returns a command line that runs a Python script on a host of the cluster."""
    return [sys.executable, CLUSTER, "exec", f"h{number}", sys.executable, *words]


def shared_options(options: argparse.Namespace) -> list[str]:
    """Returns the options that both systems share."""
    o = options
    words = {"network": o.network, "dataset": o.dataset, "data-dir": o.data_dir, "batch-size": 64}
    return [word for name, value in words.items() for word in (f"--{name}", str(value))]


def with_ddp(
    options: argparse.Namespace, contender: Contender, hosts: list[str], seed: int, folder: Path
) -> None:
    """Starts one process of DDP on each host."""
    last = max(options.target)
    limits = ["--steps", str(options.steps), "--every", str(EVERY), "--target", str(last)]
    words = [DDP, "--hook", contender.hook, *limits, *shared_options(options), "--out", str(folder)]
    words += ["--seed", str(seed)]
    on_hosts(hosts, words, folder)


def on_hosts(hosts: list[str], words: list[str], folder: Path) -> str:
    """Runs a process group with a rank on each host; returns the output of rank 0."""
    folder.mkdir(parents=True, exist_ok=True)
    processes = []
    for rank in range(len(hosts)):
        place = ["--rank", str(rank), "--world", str(len(hosts)), "--master", hosts[0]]
        with (folder / f"{rank}.log").open("w") as log:
            line = on_host(rank + 1, *words, *place)
            processes.append(subprocess.Popen(line, stdout=log, stderr=log))
    codes = [process.wait() for process in processes]
    if any(codes):
        raise SystemExit(f"{folder}: exit codes {codes}; see its logs")
    return (folder / "0.log").read_text()


def with_atomo(
    options: argparse.Namespace, contender: Contender, hosts: list[str], seed: int, folder: Path
) -> None:
    """Runs `atomo train` on the hosts, then evaluates its checkpoints."""
    file = folder / "hosts"
    slots = [1 + (contender.master and host == hosts[0]) for host in hosts]
    lines = (f"{host} slots={count}\n" for host, count in zip(hosts, slots, strict=True))
    file.write_text("".join(lines))
    words = ["train", "--n", str(sum(slots)), "--hostfile", str(file), *shared_options(options)]
    words += ["--max-steps", str(options.steps), "--eval-freq", str(EVERY), "--threads", "1"]
    words += ["--evaluator", "none", "--train-dir", str(folder), "--seed", str(seed)]
    words += contender.options
    with (folder / "log").open("w") as log:
        subprocess.run(on_host(1, "-m", "atomo", *words), stdout=log, stderr=log, check=True)
        evaluate = ["evaluate", "--model-dir", str(folder), "--data-dir", options.data_dir]
        subprocess.run(
            [sys.executable, "-m", "atomo", *evaluate], stdout=log, stderr=log, check=True
        )


def row(folder: Path, targets: list[float]) -> str:
    """Returns the median step, the steps and seconds to each accuracy, and the best accuracy."""
    steps, _ = read_records(folder / "metrics.jsonl")
    tests, _ = read_records(folder / "evaluations.jsonl")
    cells = [f"{statistics.median(step['step_s'] for step in steps):.3f}"]
    for target in targets:
        reached = next((test["step"] for test in tests if test["top1"] >= target), None)
        if reached is None:
            cells += [f"never in {len(steps)}", ""]
        else:
            cells += [str(reached), f"{spent(steps, reached):.1f}"]
    return " | ".join([*cells, f"{max(test['top1'] for test in tests):.2%}"])


def spent(steps: list[Mapping[str, Any]], last: int) -> float:
    """Returns the seconds of training up to a step."""
    return float(sum(step["step_s"] for step in steps if step["step"] <= last))


if __name__ == "__main__":
    main()
