"""Final accuracy against the relative error of the codec, for many codecs.

The error is the one that `--error-budget` bounds, measured where `--code auto` measures it: on the
gradient of one batch at the first weights. Short runs of LeNet, a thread a rank; lines of JSON, and
finished measurements are not repeated. `--runs` takes the folders of finished runs of any network
instead, such as ResNet20's on CIFAR-10, and `--converged` the table that `converge.py` made; then
only the errors of their codecs are measured.

python benchmarks/budget.py lenet.jsonl --data-dir data --steps 200 --seeds 2
python benchmarks/budget.py resnet20.jsonl --runs runs/r20/* --data-dir data
python benchmarks/budget.py digits.jsonl --converged docs/convergence.md
python benchmarks/budget.py lenet.jsonl resnet20.jsonl digits.jsonl --table - --png budget.png
"""

import argparse
import json
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean

import torch
from thread_jobs import accuracy, train
from torch import Tensor

from atomo.codecs import make_codec
from atomo.config.file import read_settings
from atomo.config.settings import Settings
from atomo.core.plotting import pyplot_for
from atomo.errors import AtomoError
from atomo.memory import kind_of
from atomo.planning import measure_passes
from atomo.planning.compression_errors import measure_compression_errors
from atomo.training.job.job import Job, make_job
from atomo.workloads.datasets import epoch_seed

CODES = (
    "sgd", "topk(ratio=0.01)", "qsgd", "svd(rank=3)", "bf16", "topk(ratio=0.1)", "efsignsgd",
    "randk(ratio=0.1)", "svd(rank=3, selection=top)", "topk(ratio=0.001)", "qsgd(bits=2)",
    "terngrad", "svd(rank=1)", "natural", "randk(ratio=0.3)", "onebit", "dgc(ratio=0.001)",
    "svd(rank=8)", "randk(ratio=0.02)", "topk(ratio=0.3)",
)  # fmt: skip
LEAST = 1e-3  # the least error that the picture shows; smaller ones are drawn there


@dataclass(frozen=True)
class Outcome:
    """The result of one run."""

    network: str
    code: str
    memory: str
    seed: int
    workers: int
    error: float
    """Relative squared error of the mean gradient of all workers."""
    accuracy: float | None  # of the test images; None: it diverged

    @property
    def feeds_back(self) -> bool:
        """True if the memory sends the lost part in later steps."""
        return kind_of(self.memory).feeds_back


def main() -> None:
    """Runs the missing measurements, or prints the stored ones."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", nargs="+", type=Path)
    parser.add_argument("--runs", nargs="*", type=Path, help="folders of finished runs")
    parser.add_argument("--converged", type=Path, help="the page with the table of converge.py")
    parser.add_argument("--data-dir", default="data")
    parser.add_argument("--codes", default=";".join(CODES), help="separated by ';'")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--table", type=Path, help="file for a table; -: here")
    parser.add_argument("--png", default="")
    options = parser.parse_args()
    if options.table or options.png:
        show([one for path in options.results for one in read(path)], options)
        return
    torch.set_num_threads(1)
    (path,) = options.results
    known = {(one.code, one.seed) for one in read(path)}
    missing = [one for one in wanted(options) if (one[0].code, one[0].seed) not in known]
    for settings, outcomes in missing:
        for outcome in outcomes(settings):
            with path.open("a") as out:
                out.write(json.dumps(asdict(outcome)) + "\n")
            print(outcome, flush=True)


Way = Callable[[Settings], "list[Outcome]"]


def wanted(options: argparse.Namespace) -> list[tuple[Settings, Way]]:
    """Returns the settings of the requested runs, each with the function that measures it."""
    if options.converged:
        return [*of_table(options.converged)]
    if options.runs:
        return [(settings, finished) for settings in of_runs(options)]
    return [(settings, run) for settings in of_codes(options)]


def of_table(page: Path) -> Iterator[tuple[Settings, Way]]:
    """Codecs with their default memories, and their accuracies with 1, 2 and 3 workers.

    Codecs with majority votes are left out: their result is no gradient.
    """
    row = re.compile(r"\| `([^`]+)` \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|")
    for found in map(row.match, page.read_text().splitlines()):
        if found and not make_codec(found[1]).votes:
            each = [float(cell) / 100 for cell in found.groups()[1:]]
            yield Settings(code=found[1]).resolved(), partial(compared, accuracies=each)


def compared(settings: Settings, accuracies: Sequence[float]) -> list[Outcome]:
    """Returns the errors of the mean of 1, 2, ... workers, each with its known accuracy."""
    gradient = gradient_of(make_job(settings, settings.n))
    lost = measure_compression_errors(settings.codecs[0], gradient)
    return [
        replace(outcome(settings, sum(lost.of_mean(workers)), value), workers=workers)
        for workers, value in enumerate(accuracies, 1)
    ]


def of_codes(options: argparse.Namespace) -> Iterator[Settings]:
    """Yields two workers without a master; all codecs with one seed before any with the next."""
    for seed in range(1, options.seeds + 1):
        for code in filter(None, map(str.strip, options.codes.split(";"))):
            yield Settings(
                code=code, seed=seed, dataset="MNIST", data_dir=options.data_dir, n=2,
                comm_type="Allgather", max_steps=options.steps, eval_freq=10**9,
                evaluator="none",
            ).resolved()  # fmt: skip


def of_runs(options: argparse.Namespace) -> Iterator[Settings]:
    """Yields the settings of runs that are over."""
    for folder in options.runs:
        if (folder / "finished.json").exists():
            given = read_settings([folder / "settings.toml"])
            given |= {"data_dir": options.data_dir, "train_dir": str(folder)}
            yield Settings(**given).resolved()


def run(settings: Settings) -> list[Outcome]:
    """Trains, each rank a thread, and scores."""
    with tempfile.TemporaryDirectory() as folder:
        chosen = replace(settings, train_dir=folder)
        found = error_of(make_job(chosen, chosen.n))
        try:
            train(chosen)
            return [outcome(chosen, found, accuracy(chosen))]
        except AtomoError:
            return [outcome(chosen, found, None)]


def finished(settings: Settings) -> list[Outcome]:
    """Reads the results of a finished run."""
    lines = (Path(settings.train_dir) / "evaluations.jsonl").read_text().splitlines()
    job = make_job(settings, settings.n)
    return [outcome(settings, error_of(job), json.loads(lines[-1])["top1"])]


def outcome(settings: Settings, error: float, accuracy: float | None) -> Outcome:
    s = settings
    return Outcome(
        f"{s.network} on {s.dataset}", s.code, s.memory, s.seed, s.workers, error, accuracy
    )


def error_of(job: Job) -> float:
    """Returns the error of the codec on one batch's gradient at the first weights."""
    (codec,) = job.settings.codecs[-1:]  # of a schedule, the one that it ends with
    return sum(measure_compression_errors(codec, gradient_of(job)).of_mean(job.workers))


def gradient_of(job: Job) -> Mapping[str, Tensor]:
    """Worker 1's of its first batch."""
    indices = job.shard(1).indices(1)[: job.settings.batch_size]
    batch = job.workload.train.batch(indices, epoch_seed(job.settings.seed, 0))
    return measure_passes(job.model.train(), job.workload.objective, batch, 1).gradient


def read(path: Path) -> list[Outcome]:
    """Reads the records of earlier runs."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [Outcome(**json.loads(line)) for line in lines]


def show(found: Sequence[Outcome], options: argparse.Namespace) -> None:
    """A table, and a picture."""
    text = table(found)
    if options.table and str(options.table) != "-":
        options.table.write_text(text)
    else:
        print(text)
    if options.png:
        draw(found, options.png)


def cells(found: Sequence[Outcome]) -> list[tuple[str, str, str, float, list[float | None]]]:
    """Network, codec, memory, error and the accuracies of all seeds, by error."""
    groups: dict[tuple[str, str, str], list[Outcome]] = defaultdict(list)
    for one in found:
        groups[one.network, one.code, one.memory].append(one)
    rows = [
        (*key, fmean(one.error for one in runs), [one.accuracy for one in runs])
        for key, runs in groups.items()
    ]
    return sorted(rows, key=lambda row: (row[0], kind_of(row[2]).feeds_back, row[3]))


def table(found: Sequence[Outcome]) -> str:
    """Returns a row a network and codec."""
    lines = ["| network | code | memory | error | accuracy, % | to dense |", "| --- " * 6 + "|"]
    rows = cells(found)
    dense = {row[0]: fmean(filter(None, row[4])) for row in rows if row[1] == "sgd"}
    for network_, code, memory, error, values in rows:
        kept = [value for value in values if value is not None]
        each = ", ".join("diverged" if one is None else f"{100 * one:.2f}" for one in values)
        gap = f"{100 * (fmean(kept) - dense[network_]):+.2f}" if kept and dense else ""
        lines.append(f"| {network_} | `{code}` | `{memory}` | {error:.3g} | {each} | {gap} |")
    return "\n".join(lines) + "\n"


def draw(found: Sequence[Outcome], path: str) -> None:
    """A plot a network: accuracy over error, with and without error feedback."""
    pyplot = pyplot_for(path)
    names = sorted({one.network for one in found})
    figure, axes = pyplot.subplots(
        1, len(names), figsize=(6.5 * len(names), 4.5), squeeze=False, layout="constrained"
    )
    for axis, name in zip(axes[0], names, strict=True):
        rows = [row for row in cells(found) if row[0] == name]
        for back, marker, label in ((False, "o", "no memory"), (True, "^", "error feedback")):
            some = [row for row in rows if kind_of(row[2]).feeds_back == back]
            points = [(max(r[3], LEAST), 100 * (v or 0.1)) for r in some for v in r[4]]
            axis.plot(*zip(*points, strict=True), marker, label=label) if points else None
            for row in some:
                at = max(row[3], LEAST), 100 * fmean(value or 0.1 for value in row[4])
                axis.annotate(row[1], at, fontsize=6, xytext=(3, 3), textcoords="offset points")
        dense = [100 * (value or 0) for row in rows if row[1] == "sgd" for value in row[4]]
        for value in dense:
            axis.axhline(value, color="grey", linewidth=0.7)
        axis.set(
            xscale="log",
            xlabel="relative squared error (less: at 0.001)",
            ylabel="test top-1, %",
            title=name,
        )
        axis.legend(fontsize="small")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


if __name__ == "__main__":
    main()
