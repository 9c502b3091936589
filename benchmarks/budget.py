"""Final accuracy against the relative error of the codec, for many codecs.

`--error-budget` bounds this error, and `--code auto` measures it in the same way: on the gradient
of one batch at the initial weights. The runs are short runs of LeNet with a thread for each rank.
Results are lines of JSON, and finished measurements are not repeated. `--runs` reads the folders of
finished runs of any network instead, such as those of ResNet20 on CIFAR-10, and `--converged` the
table of `converge.py`; then the script measures only the errors of their codecs.

python benchmarks/budget.py lenet.jsonl --data-dir data --steps 200 --seeds 2
python benchmarks/budget.py resnet20.jsonl --runs runs/r20/* --data-dir data
python benchmarks/budget.py digits.jsonl --converged docs/convergence.md
python benchmarks/budget.py lenet.jsonl resnet20.jsonl digits.jsonl --table - --png budget.png
python benchmarks/budget.py --page docs/convergence.md --png docs/budget.png
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
from typing import Any

import torch
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
from parts.thread_jobs import accuracy, train

CODES = (
    "sgd", "topk(ratio=0.01)", "qsgd", "svd(rank=3)", "bf16", "topk(ratio=0.1)", "efsignsgd",
    "randk(ratio=0.1)", "svd(rank=3, selection=top)", "topk(ratio=0.001)", "qsgd(bits=2)",
    "terngrad", "svd(rank=1)", "natural", "randk(ratio=0.3)", "onebit", "dgc(ratio=0.001)",
    "svd(rank=8)", "randk(ratio=0.02)", "topk(ratio=0.3)",
)  # fmt: skip


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
    accuracy: float | None  # on the test images; None: the run diverged


def main() -> None:
    """Runs the missing measurements, or prints the stored ones."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", nargs="*", type=Path)
    parser.add_argument("--page", type=Path, help="page with the table, in place of results")
    parser.add_argument("--runs", nargs="*", type=Path, help="folders of finished runs")
    parser.add_argument("--converged", type=Path, help="page with the table of converge.py")
    parser.add_argument("--data-dir", default="data")
    parser.add_argument("--codes", default=";".join(CODES), help="separated by ';'")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--table", type=Path, help="file for a table; -: standard output")
    parser.add_argument("--png", default="")
    options = parser.parse_args()
    if options.table or options.png:
        stored = of_page(options.page) if options.page else []
        show(stored + [outcome for path in options.results for outcome in read(path)], options)
        return
    torch.set_num_threads(1)
    (path,) = options.results
    measured = {(outcome.code, outcome.seed) for outcome in read(path)}
    for settings, measure in requested(options):
        if (settings.code, settings.seed) in measured:
            continue
        for outcome in measure(settings):
            with path.open("a") as out:
                out.write(json.dumps(asdict(outcome)) + "\n")
            print(outcome, flush=True)


Measure = Callable[[Settings], "list[Outcome]"]


def requested(options: argparse.Namespace) -> list[tuple[Settings, Measure]]:
    """Returns the settings of the requested runs, each with its measuring function."""
    if options.converged:
        return [*of_table(options.converged)]
    if options.runs:
        return [(settings, finished) for settings in of_runs(options)]
    return [(settings, run) for settings in of_codes(options)]


def of_table(page: Path) -> Iterator[tuple[Settings, Measure]]:
    """Yields the settings of the codecs with their default memories, for 1, 2 and 3 workers.

    Codecs with majority votes are left out: a vote is no estimate of the gradient.
    """
    row = re.compile(r"\| `([^`]+)` \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|")
    for match in map(row.match, page.read_text().splitlines()):
        if match and not make_codec(match[1]).votes:
            accuracies = [float(cell) / 100 for cell in match.groups()[1:]]
            yield Settings(code=match[1]).resolved(), partial(compared, accuracies=accuracies)


def compared(settings: Settings, accuracies: Sequence[float]) -> list[Outcome]:
    """Measures the errors of the mean of 1, 2, ... workers; returns them with the accuracies."""
    gradient = gradient_of(make_job(settings, settings.n))
    lost = measure_compression_errors(settings.codecs[0], gradient)
    return [
        replace(outcome(settings, sum(lost.of_mean(workers)), value), workers=workers)
        for workers, value in enumerate(accuracies, 1)
    ]


def of_codes(options: argparse.Namespace) -> Iterator[Settings]:
    """Yields the settings of runs with two workers and no master, seed by seed."""
    for seed in range(1, options.seeds + 1):
        for code in filter(None, map(str.strip, options.codes.split(";"))):
            yield Settings(
                code=code, seed=seed, dataset="MNIST", data_dir=options.data_dir, n=2,
                comm_type="Allgather", max_steps=options.steps, eval_freq=10**9,
                evaluator="none",
            ).resolved()  # fmt: skip


def of_runs(options: argparse.Namespace) -> Iterator[Settings]:
    """Yields the settings of finished runs."""
    for folder in options.runs:
        if (folder / "finished.json").exists():
            stored = read_settings([folder / "settings.toml"])
            stored |= {"data_dir": options.data_dir, "train_dir": str(folder)}
            yield Settings(**stored).resolved()


def run(settings: Settings) -> list[Outcome]:
    """Trains with a thread for each rank; returns the error and the accuracy."""
    with tempfile.TemporaryDirectory() as folder:
        chosen = replace(settings, train_dir=folder)
        error = error_of(make_job(chosen, chosen.n))
        try:
            train(chosen)
            return [outcome(chosen, error, accuracy(chosen))]
        except AtomoError:
            return [outcome(chosen, error, None)]


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
    """Returns the error of the codec on the gradient of one batch at the initial weights."""
    (codec,) = job.settings.codecs[-1:]  # the last codec of a schedule
    return sum(measure_compression_errors(codec, gradient_of(job)).of_mean(job.workers))


def gradient_of(job: Job) -> Mapping[str, Tensor]:
    """Returns the gradient of the first batch of worker 1."""
    indices = job.shard(1).indices(1)[: job.settings.batch_size]
    batch = job.workload.train.batch(indices, epoch_seed(job.settings.seed, 0))
    return measure_passes(job.model.train(), job.workload.objective, batch, 1).gradient


def read(path: Path) -> list[Outcome]:
    """Reads the records of earlier runs."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [Outcome(**json.loads(line)) for line in lines]


def show(outcomes: Sequence[Outcome], options: argparse.Namespace) -> None:
    """Writes the table, and draws the picture."""
    text = table(outcomes)
    if options.table and str(options.table) != "-":
        options.table.write_text(text)
    else:
        print(text)
    if options.png:
        draw(outcomes, options.png)


Row = tuple[str, str, str, float, list[float | None]]


def cells(outcomes: Sequence[Outcome]) -> list[Row]:
    """Returns rows of network, codec, memory, error and the accuracies of all seeds, by error."""
    groups: dict[tuple[str, str, str], list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        groups[outcome.network, outcome.code, outcome.memory].append(outcome)
    rows = [
        (*key, fmean(outcome.error for outcome in runs), [outcome.accuracy for outcome in runs])
        for key, runs in groups.items()
    ]
    return sorted(rows, key=lambda row: (row[0], is_fed_back(row[2]), row[3]))


def table(outcomes: Sequence[Outcome]) -> str:
    """Returns a Markdown table with a row for each network, codec and memory."""
    lines = ["| network | code | memory | error | accuracy, % | to dense |", "| --- " * 6 + "|"]
    rows = cells(outcomes)
    dense = {row[0]: fmean(filter(None, row[4])) for row in rows if row[1] == "sgd"}
    for network_, code, memory, error, values in rows:
        finite = [value for value in values if value is not None]
        accuracies = ", ".join(
            "diverged" if value is None else f"{100 * value:.2f}" for value in values
        )
        gap = f"{100 * (fmean(finite) - dense[network_]):+.2f}" if finite and dense else ""
        lines.append(f"| {network_} | `{code}` | `{memory}` | {error:.3g} | {accuracies} | {gap} |")
    return "\n".join(lines) + "\n"


def of_page(page: Path) -> list[Outcome]:
    """Reads the outcomes of the table in a page."""
    row = re.compile(r"\| (\w+ on \w+) \| `(.+)` \| `(.+)` \| (\S+) \| (.+) \| [+-].* \|")
    return [
        Outcome(match[1], match[2], match[3], seed, 0, float(match[4]), float(accuracy) / 100)
        for match in filter(None, map(row.match, page.read_text().splitlines()))
        for seed, accuracy in enumerate(match[5].split(", "), 1)
        if accuracy != "diverged"
    ]


def draw(outcomes: Sequence[Outcome], path: str) -> None:
    """Draws the range of accuracies of each codec for each network, codecs by rising error."""
    pyplot = pyplot_for(path)
    names = sorted({outcome.network for outcome in outcomes})
    rows = {name: [row for row in cells(outcomes) if row[0] == name] for name in names}
    figure, axes = pyplot.subplots(
        len(names), 1, figsize=(8, 1.5 * len(names) + 0.24 * sum(map(len, rows.values()))),
        squeeze=False, layout="constrained", height_ratios=[len(rows[name]) + 2 for name in names],
    )  # fmt: skip
    for axis, name in zip(axes[:, 0], names, strict=True):
        draw_ranges(axis, rows[name])
        axis.set(title=name, xlabel="test top-1, %")
    axes[0, 0].legend(loc="lower left")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def draw_ranges(axis: Any, rows: Sequence[Row]) -> None:
    """Draws the codecs of one network, a line from the worst to the best seed and their mean."""
    labelled: set[bool] = set()
    for place, (_, code, memory, _, values) in enumerate(rows):
        points, back = [100 * value for value in values if value is not None], is_fed_back(memory)
        style = {"color": "C1" if back else "C0", "marker": "^" if back else "o"}
        label = "_" if back in labelled else ("error feedback" if back else "no memory")
        labelled.add(back)
        axis.plot([min(points), max(points)], [place, place], color=style["color"], linewidth=3,
                  alpha=0.4)  # fmt: skip
        axis.plot([fmean(points)], [place], linestyle="", label=label, **style)
        if code == "sgd":
            axis.axvspan(min(points), max(points), color="grey", alpha=0.15, label="dense")
    axis.set_yticks(range(len(rows)), [f"{row[1]}   {row[3]:.2g}" for row in rows])
    axis.set_ylabel("codec, relative squared error")
    axis.invert_yaxis()
    axis.grid(axis="x", alpha=0.3)


def is_fed_back(memory: str) -> bool:
    """Returns True if a memory applies error feedback."""
    return kind_of(memory).feeds_back


if __name__ == "__main__":
    main()
