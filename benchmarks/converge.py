"""Accuracy of every recipe and codec, with each memory, optimizer and communicator.

LeNet is trained on the embedded digits with the defaults: learning rate 0.02, momentum 0.9, batches
of 32, 10 epochs. A cell is the test accuracy after the last step, or the error of the run. The
ranks of a job are threads of one process over the in-process transport; two jobs run at a time.
Results are lines of JSON, and finished runs are not repeated. There are two tables: `workers` has a
column for each number of workers; `optimizers` has rows of communicators and codecs, and a column
for each optimizer, with two workers.

python benchmarks/converge.py converge.jsonl [--grid optimizers] [--only topk] [--processes 2]
python benchmarks/converge.py converge.jsonl --grid optimizers --table docs/convergence.md
"""

import argparse
import json
import shlex
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from atomo.codecs import CODECS
from atomo.config.settings import Settings
from atomo.core.arguments import parse_arguments, to_arguments
from atomo.errors import AtomoError, ConfigError
from atomo.memory import MEMORIES
from atomo.options.recipes import RECIPES
from atomo.training.job.events import Caution, Event
from atomo.training.records.causes import at_start
from parts.thread_jobs import accuracy, train

COLUMNS: Mapping[str, str] = {
    "1 worker": "--n 2",
    "2 workers": "--n 3",
    "3 workers": "--n 4",
    "2 of 3": "--n 4 --num-aggregate 2",
    "1 of 3": "--n 4 --num-aggregate 1",
    "2, momentum 0": "--n 3 --momentum 0",
}
FEW = ("2 workers", "1 worker", "1 of 3")  # columns of rows with a memory other than the default
ADAM = "--optimizer adam"
OPTIMIZERS: Mapping[str, str] = {"sgd": "", "adam": ADAM}
GATHERED = ("svd", "topk")  # a gather returns the bits of a master's mean
SUMMED = ("fp16", "randk")
MEMORY_ORDER = ("residual", "none", "momentum", "dgc", "adam")
LOW_RANK = ("", " --svd-rank 4", " --svd-rank 1")
SPECIAL = ("svd(selection=top)", "randk(unbiased=False)", "topk(ratio=0.001)")


Row = tuple[str, str, Sequence[str]]
"""Name, options and columns."""


@dataclass(frozen=True)
class Grid:
    """A table of the page."""

    name: str
    columns: Mapping[str, str]
    few: Sequence[str]
    """Columns that run first."""
    rows: Callable[[], Iterator[Row]]

    @property
    def begin(self) -> str:
        """The mark before the table on the page."""
        return f"<!-- cells of {self.name} -->\n"

    @property
    def end(self) -> str:
        """The mark after the table on the page."""
        return f"<!-- end of cells of {self.name} -->\n"


@dataclass(frozen=True)
class Outcome:
    """Result of one run."""

    command: str
    accuracy: float | None  # on the test images
    cautions: tuple[str, ...]
    error: str = ""

    def cell(self) -> str:
        """Returns the cell of the table; a star marks a caution of the run or its settings."""
        star = "*" if self.cautions or known_caution(self.command) else ""
        return (
            f"{100 * self.accuracy:.1f}{star}" if self.accuracy is not None else self.error + star
        )


def rows_by_workers() -> Iterator[Row]:
    """Yields the rows of every recipe, codec and memory."""
    for name in RECIPES:
        yield f"recipe `{name}`", f"--recipe {name}", tuple(COLUMNS)
    for code in (*CODECS, *SPECIAL):
        yield f"`{code}`", f"--code {shlex.quote(code)}", tuple(COLUMNS)
    for code, memory in named_memories("--momentum 0.9"):
        yield f"`{code}`, `{memory}`", f"--code {shlex.quote(code)} --memory {memory}", FEW


def rows_by_optimizer() -> Iterator[Row]:
    """Yields the rows of every communicator, codec and memory, with SGD and with Adam."""
    optimizers = tuple(OPTIMIZERS)
    for comm_type in ("PowerSGD", "ACPSGD"):
        for rank in LOW_RANK:
            yield f"`{comm_type}{rank}`", f"--n 2 --comm-type {comm_type}{rank}", optimizers
    yield "`Chunked`", "--n 2 --comm-type Chunked --code chunktopk", optimizers
    for comm_type, codes in (("Allgather", GATHERED), ("Allreduce", SUMMED)):
        for code in codes:
            words = f"--n 2 --comm-type {comm_type} --code {code}"
            yield f"`{comm_type}`, `{code}`", words, optimizers
    for code in (*CODECS, *SPECIAL):  # the table of workers has them with SGD
        yield f"`{code}`", f"--n 3 --code {shlex.quote(code)}", ("adam",)
    for code, memory in sorted(named_memories(ADAM), key=lambda pair: MEMORY_ORDER.index(pair[1])):
        options = f"--n 3 --code {shlex.quote(code)} --memory {memory}"
        yield f"`{code}`, `{memory}`", options, ("adam",)


def named_memories(options: str) -> Iterator[tuple[str, str]]:
    """Yields each codec with each memory that is not its default with these options."""
    for code in (*CODECS, *SPECIAL[:2]):
        default = settings(f"--code {shlex.quote(code)} {options}").memory.partition("(")[0]
        yield from ((code, memory) for memory in MEMORIES if memory != default)


GRIDS = (
    Grid("workers", COLUMNS, FEW, rows_by_workers),
    Grid("optimizers", OPTIMIZERS, ("sgd", "adam"), rows_by_optimizer),
)


def settings(command: str) -> Settings:
    """Resolves the settings of a user's options.

    Raises:
        ConfigError: the options are refused.
    """
    words = shlex.split(command)
    return parse_arguments(Settings, words, "train", "", Settings.from_recipe).resolved()


def known_caution(command: str) -> str:
    """Returns the caution before the first step of a command; empty without one or if refused."""
    try:
        return next(at_start(settings(command)), "")
    except ConfigError:
        return ""


def run(command: str) -> Outcome:
    """Runs one job; returns its outcome."""
    torch.set_num_threads(1)
    cautions: list[str] = []

    def tell(event: Event) -> None:
        if isinstance(event, Caution):
            cautions.append(event.text)

    with tempfile.TemporaryDirectory() as folder:
        try:
            chosen = replace(settings(command), train_dir=folder, eval_freq=10**9, timeout=120.0)
            train(chosen, tell)
            return Outcome(command, accuracy(chosen), tuple(cautions))
        except ConfigError:
            return Outcome(command, None, (), "refused")
        except AtomoError as error:
            return Outcome(command, None, tuple(cautions), type(error).__name__)


def read(path: Path) -> dict[str, Outcome]:
    """Reads the records of earlier runs."""
    lines = path.read_text().splitlines() if path.exists() else []
    outcomes = [Outcome(**json.loads(line)) for line in lines]
    return {outcome.command: outcome for outcome in outcomes}


def canonical(command: str) -> str:
    """Returns the resolved command: a recipe and its codec are the same run. `--nesterov` is left
    out where it is the default.
    """
    try:
        chosen = settings(command)
    except ConfigError:
        return command
    short = replace(chosen, nesterov=None)
    return shlex.join(to_arguments(short if short.resolved() == chosen else chosen))


def commands(grid: Grid, only: str, extra: str) -> list[str]:
    """Returns every run of a table once, the most informative columns first."""
    order = sorted(grid.columns, key=lambda column: column not in grid.few)
    runs = [
        (len(columns) < len(grid.columns), canonical(f"{line} {grid.columns[name]}{extra}"))
        for name in order
        for row, line, columns in grid.rows()
        if only in row and name in columns
    ]
    return list(dict.fromkeys(command for _, command in sorted(runs, key=lambda run: run[0])))


def fill(path: Path, requested: Sequence[str], processes: int) -> None:
    """Runs the missing commands, and appends each outcome to the file."""
    missing = [command for command in requested if command not in read(path)]
    with ProcessPoolExecutor(processes) as pool, path.open("a") as out:
        for done in as_completed([pool.submit(run, command) for command in missing]):
            outcome = done.result()
            out.write(json.dumps(vars(outcome)) + "\n")
            out.flush()
            print(f"{outcome.command}: {outcome.cell()} {outcome.cautions}", flush=True)


def table(grid: Grid, outcomes: Mapping[str, Outcome]) -> str:
    """Returns the table in Markdown."""
    lines = ["| run | " + " | ".join(grid.columns) + " |", "| --- |" + " --- |" * len(grid.columns)]
    for name, options, columns in grid.rows():
        cells = [
            outcomes[key].cell() if column in columns and key in outcomes else ""
            for column, words in grid.columns.items()
            for key in [canonical(f"{options} {words}")]
        ]
        if any(cells):
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def write_tables(page: Path, grids: Sequence[Grid], outcomes: Mapping[str, Outcome]) -> None:
    """Writes each table between its marks, if the page has these marks."""
    text = page.read_text()
    for grid in grids:
        before, mark, after = text.partition(grid.begin)
        if mark:
            text = before + mark + table(grid, outcomes) + grid.end + after.partition(grid.end)[2]
    page.write_text(text)


def main() -> None:
    """Runs the missing commands, or writes the tables of the stored outcomes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--grid", choices=[grid.name for grid in GRIDS], help="only this table")
    parser.add_argument("--only", default="", help="text that the names of the rows contain")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--table", type=Path, help="a page to write the tables into; runs nothing")
    options = parser.parse_args()
    grids = [grid for grid in GRIDS if options.grid in (None, grid.name)]
    if options.table:
        write_tables(options.table, grids, read(options.results))
        return
    extra = f" --epochs {options.epochs}" if options.epochs != 10 else ""
    for grid in grids:
        fill(options.results, commands(grid, options.only, extra), options.processes)


if __name__ == "__main__":
    main()
