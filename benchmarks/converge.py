"""What every recipe, and every codec with every memory that it accepts, trains to on defaults.

LeNet on the embedded digits as a user gets it: learning rate 0.02, momentum 0.9, batches of 32, 10
epochs. A cell is the test accuracy after the last step, or why there is none. The jobs are threads
of one process over the in-process transport; two jobs run at a time. Results are lines of JSON, and
what is there already is not run again.

python benchmarks/converge.py converge.jsonl [--only topk] [--processes 2] [--epochs 10]
python benchmarks/converge.py converge.jsonl --table docs/convergence.md
"""

import argparse
import json
import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from thread_jobs import accuracy, train

from atomo.arguments import parse, to_arguments
from atomo.codecs import CODECS
from atomo.config import Settings
from atomo.errors import AtomoError, ConfigError
from atomo.memory import MEMORIES
from atomo.recipes import RECIPES
from atomo.training.events import Caution, Event

COLUMNS: Mapping[str, str] = {
    "1 worker": "--n 2",
    "2 workers": "--n 3",
    "3 workers": "--n 4",
    "2 of 3": "--n 4 --num-aggregate 2",
    "1 of 3": "--n 4 --num-aggregate 1",
    "2, momentum 0": "--n 3 --momentum 0",
}
FEW = ("2 workers", "1 worker", "1 of 3")  # where only a memory differs from the default
BEGIN, END = "<!-- cells -->\n", "<!-- end of cells -->\n"


@dataclass(frozen=True)
class Outcome:
    """How one run ended."""

    command: str
    accuracy: float | None  # of the test images
    cautions: tuple[str, ...]
    error: str = ""

    def cell(self) -> str:
        """As the table shows it: a caution is a star."""
        star = "*" if self.cautions else ""
        return (
            f"{100 * self.accuracy:.1f}{star}" if self.accuracy is not None else self.error + star
        )


def rows() -> Iterator[tuple[str, str, Sequence[str]]]:
    """Name, options and columns of every row."""
    for name in RECIPES:
        yield f"recipe `{name}`", f"--recipe {name}", tuple(COLUMNS)
    for code in CODECS:
        yield f"`{code}`", f"--code {code}", tuple(COLUMNS)
    special = ("svd(selection=top)", "randk(unbiased=False)", "topk(ratio=0.001)")
    for code in special:
        yield f"`{code}`", f"--code {shlex.quote(code)}", tuple(COLUMNS)
    for code in (*CODECS, *special[:2]):
        for memory in MEMORIES:
            options = f"--code {shlex.quote(code)}"
            if settings(options).memory.partition("(")[0] != memory:
                yield f"`{code}`, `{memory}`", f"{options} --memory {memory}", FEW


def settings(command: str) -> Settings:
    """What a user's options come to.

    Raises:
        ConfigError: they are refused.
    """
    words = shlex.split(command)
    return parse(Settings, words, "train", "", Settings.from_recipe).resolved()


def run(command: str) -> Outcome:
    """One run from its first step to its score."""
    torch.set_num_threads(1)
    told: list[str] = []

    def tell(event: Event) -> None:
        if isinstance(event, Caution):
            told.append(event.text)

    with tempfile.TemporaryDirectory() as folder:
        try:
            chosen = replace(settings(command), train_dir=folder, eval_freq=10**9, timeout=120.0)
            train(chosen, tell)
            return Outcome(command, accuracy(chosen), tuple(told))
        except ConfigError:
            return Outcome(command, None, (), "refused")
        except AtomoError as error:
            return Outcome(command, None, tuple(told), type(error).__name__)


def read(path: Path) -> dict[str, Outcome]:
    """What was run already."""
    lines = path.read_text().splitlines() if path.exists() else []
    found = [Outcome(**json.loads(line)) for line in lines]
    return {one.command: one for one in found}


def canonical(command: str) -> str:
    """What a command comes to, so that a recipe and the codec that it names are one run."""
    try:
        return shlex.join(to_arguments(settings(command)))
    except ConfigError:
        return command


def commands(only: str, more: str) -> list[str]:
    """Every run there is to make, once; the columns that tell most come first."""
    order = sorted(COLUMNS, key=lambda column: column not in FEW)
    wanted = [
        (len(columns) < len(COLUMNS), canonical(f"{line} {words}{more}"))
        for column, words in ((name, COLUMNS[name]) for name in order)
        for name, line, columns in rows()
        if only in name and column in columns
    ]
    return list(dict.fromkeys(command for _, command in sorted(wanted, key=lambda one: one[0])))


def fill(path: Path, wanted: Sequence[str], processes: int) -> None:
    """Runs what is missing, and appends each outcome as it comes."""
    missing = [command for command in wanted if command not in read(path)]
    with ProcessPoolExecutor(processes) as pool, path.open("a") as out:
        for done in as_completed([pool.submit(run, command) for command in missing]):
            outcome = done.result()
            out.write(json.dumps(vars(outcome)) + "\n")
            out.flush()
            print(f"{outcome.command}: {outcome.cell()} {outcome.cautions}", flush=True)


def table(found: Mapping[str, Outcome]) -> str:
    """A row each, a column for each number of workers."""
    lines = ["| run | " + " | ".join(COLUMNS) + " |", "| --- |" + " --- |" * len(COLUMNS)]
    for name, options, columns in rows():
        cells = [
            found[key].cell() if column in columns and key in found else ""
            for column, words in COLUMNS.items()
            for key in [canonical(f"{options} {words}")]
        ]
        if any(cells):
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Runs what is missing, or writes the table of what is there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--only", default="", help="rows whose name has this in it")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--table", type=Path, help="a page to write the table into; runs nothing")
    options = parser.parse_args()
    if options.table:
        page = options.table.read_text()
        before, _, rest = page.partition(BEGIN)
        page = before + BEGIN + table(read(options.results)) + END + rest.partition(END)[2]
        options.table.write_text(page)
        return
    more = f" --epochs {options.epochs}" if options.epochs != 10 else ""
    fill(options.results, commands(options.only, more), options.processes)


if __name__ == "__main__":
    main()
