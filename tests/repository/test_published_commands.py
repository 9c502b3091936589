"""Each published command line of the systems that this one replaces starts here.

`published_commands.txt` has them, as they were and as they are typed here. All are parsed; some
take two steps, and with `python tests/repository/test_published_commands.py` all do. Steps are
small ones: two workers, two samples a batch, photographs of 64 pixels, CIFAR-10 for CIFAR-100,
weights from a seed, on the CPU. `... 3 72-88` takes those of some lines.
"""

import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from support.harness import run_threads
from support.published_data import write_data, write_pretrained
from support.selection import slow_but

from atomo.cli.evaluate import EvaluateOptions, evaluator_settings
from atomo.cli.throughput import plan_steps
from atomo.config.comm_rules import trainers
from atomo.config.settings import Settings
from atomo.core.arguments import flag, parse_arguments, translate_spellings
from atomo.core.published import OPTIONS
from atomo.launch.cli_settings import parse_cli_settings
from atomo.launch.resolve import canonical_settings
from atomo.launch.studies.grid import axes_of, grid_points
from atomo.training.checkpoints.checkpoint import latest
from atomo.training.evaluation.evaluator import evaluate
from atomo.workloads import make_task

ROOT = Path(__file__).parents[2]
OURS = [flag(name) for name in Settings.__dataclass_fields__]


@dataclass(frozen=True)
class Line:
    """A command line of another system, with our command or the reason why there is none."""

    system: str
    file: str
    published: str
    ours: str = ""
    why: str = ""

    @property
    def command(self) -> str:
        """The name of the command."""
        return shlex.split(self.ours)[1]

    @property
    def words(self) -> list[str]:
        """The options of the command, with paths that do not depend on the test's folder."""
        parse_cli_settings = shlex.split(self.ours)[2:]
        return [
            str(ROOT / word) if word.startswith("configs/") else word for word in parse_cli_settings
        ]


def read_lines() -> list[Line]:
    """Returns all of them, in the order of the file."""
    found: list[Line] = []
    system, file = "", ""
    for text in (ROOT / "tests/repository/published_commands.txt").read_text().splitlines():
        mark, rest = text[:2], text[2:].strip()
        if mark == "==":
            system, file = (part.strip() for part in rest.split(":"))
        elif mark == "< ":
            found.append(Line(system, file, rest))
        elif mark in ("> ", ": "):
            found[-1] = replace(found[-1], **{"ours" if mark == "> " else "why": rest})
    return found


LINES = read_lines()
TRAINED = {"train", "sweep", "throughput"}
# One of each system, by how it begins here; those of networks with millions of parameters are slow.
LIGHT = ("atomo train -n 3 --hostfile=", "atomo train --config configs/dragonn/xml.toml",
         "atomo train --n 9 --config")  # fmt: skip
HEAVY = ("atomo evaluate", "atomo train -n 3 --hostfile hosts_address --lr=0.1",
         "atomo train --n 3 --hostfile hosts_address", "atomo throughput --n 4")  # fmt: skip
STEPPED = [next(line for line in LINES if line.ours.startswith(ours)) for ours in LIGHT + HEAVY]


def identity(line: Line) -> str:
    """Returns a name for a test of it."""
    return f"{LINES.index(line) + 1}-{line.system}-{line.file}"


def settings_of(line: Line) -> Settings:
    """Returns the settings of a line, as `atomo` parses it."""
    words = line.words
    if line.command == "throughput":
        words = ["--dataset=Noise", *plan_steps(words)[1]]
    elif line.command == "sweep":
        axes, words = axes_of(words)
        words += [f"{option}={value}" for option, value in next(iter(grid_points(axes))).items()]
    run = parse_cli_settings(words, line.command, "")
    run.check(lambda text: None)  # published lines give every codec the options of all
    return canonical_settings(run.settings)


def options(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yields each option and its values."""
    name, values = "", list[str]()
    for word in words:
        if word.startswith("-"):
            if name:
                yield name, values
            name, equals, value = word.partition("=")
            values = [value] if equals else []
        else:
            values.append(word)
    if name:
        yield name, values


def dropped(line: Line) -> list[str]:
    """Options of the program that ours does not have with the same values."""
    words = shlex.split(line.published)
    script = next(i for i, word in enumerate(words) if word.endswith(".py"))
    ours = list(options(translate_spellings(shlex.split(line.ours)[2:], OURS)))
    return [
        name
        for name, values in options(words[script + 1 :])
        if next(options(translate_spellings([name, *values], OURS))) not in ours
    ]


def short(line: Line, folder: Path) -> Settings:
    """Returns two steps of a line's run, as small as its network and its codec allow."""
    asked = settings_of(line)
    smaller = {"image_size": 64} if asked.image_size else {}
    if asked.dataset == "Cifar100":  # it is read with the published checksums alone
        smaller = {"dataset": "Cifar10"}
    if asked.task.startswith("detection"):
        smaller = {"task": "detection(min_size=64, max_size=64)"}
    return replace(
        asked, n=2 + (asked.n - trainers(asked.n, asked.comm_type)), num_aggregate=0, hostfile="",
        weights="", batch_size=2, max_steps=2, epochs=1000, eval_freq=1000, enable_gpu="",
        resume="never", data_dir=str(folder / "data"), train_dir=str(folder / "run"), **smaller,
    ).resolved()  # fmt: skip


def take_two_steps(line: Line, folder: Path) -> int | None:
    """Returns the step of the last checkpoint of its run."""
    write_data(folder / "data")
    if line.command in TRAINED:
        chosen = short(line, folder)
        if make_task(chosen.task).id == "encoder":  # its package takes seconds to import
            write_pretrained(folder / "data")
        run_threads(chosen)
    else:
        run_threads(short(LINES[0], folder))
        asked = evaluator_settings(parse_arguments(EvaluateOptions, line.words, "evaluate", ""))
        told = replace(asked, model_dir=folder / "run", data_dir=folder / "data", follow=False)
        assert evaluate(told, lambda result: None) == 1
    return latest(folder / "run")


@pytest.mark.slow(cases=("DRAGONN", "MergeComp"))
@pytest.mark.parametrize("system", sorted({line.system for line in LINES}))
def test_every_published_line_is_understood_and_nothing_is_dropped_in_silence(system):
    for line in (line for line in LINES if line.system == system):
        if line.command in TRAINED:
            assert settings_of(line).workers >= 1, line
        else:
            assert evaluator_settings(
                parse_arguments(EvaluateOptions, line.words, "evaluate", "")
            ).follow
        for name in dropped(line):
            known = OPTIONS.get(name.replace("_", "-"))
            assert name in line.why or (known is not None and not known.option), (name, line)


@pytest.mark.long(
    cases=(
        "29",
        "6-",
    )
)
@pytest.mark.slow
@pytest.mark.parametrize("line", slow_but(STEPPED[: len(LIGHT)], STEPPED), ids=identity)
def test_one_line_of_each_kind_takes_two_steps(line, tmp_path):
    assert take_two_steps(line, tmp_path) == 2


def numbers(words: Sequence[str]) -> set[int]:
    """Returns those that words such as 3 and 72-88 name, or all."""
    ends = [word.partition("-") for word in words] or [("1", "-", str(len(LINES)))]
    return {n for first, _, last in ends for n in range(int(first), int(last or first) + 1)}


def main(words: Sequence[str]) -> int:
    """Takes two steps of every line, or of some, and says how long each took; 1 if any fails."""
    failed = 0
    for number in sorted(numbers(words)):
        line, start, told = LINES[number - 1], time.process_time(), "ok"
        with tempfile.TemporaryDirectory() as folder:
            try:
                assert take_two_steps(line, Path(folder)) == 2
            except Exception as error:
                failed, told = 1, f"{type(error).__name__}: {error}"
        took = time.process_time() - start
        sys.stdout.write(f"{number:3} {took:5.1f} s {told}  {line.system}: {line.published}\n")
        sys.stdout.flush()
    return failed


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
