"""Loss of AdamW with compressed gradients, compared with dense training after as many steps.

Two ranks are threads of one process. `atomo.wrap_optimizer` averages their gradients, as in a job.
There are two tasks: a character model (2 layers of 96, tied, windows of 64) on the text of Python's
reference manual, which every Python ships, and LeNet on the embedded digits. A cell is a code, a
method of the table METHODS, a number of steps and a seed. Results are lines of JSON. A cell that
has a result is not run again.

python benchmarks/adam.py benchmarks/records/adam.jsonl --codes 'topk(ratio=0.01); efsignsgd'
python benchmarks/adam.py benchmarks/records/adam.jsonl --table docs/optimizers.md
"""

import argparse
import copy
import json
import math
import statistics
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any, Final, Protocol, final

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import atomo
from atomo.codecs import CODECS
from atomo.exchange.collectives.direct import Direct
from atomo.hooks.optimizer import AveragedOptimizer
from atomo.transports import network
from atomo.workloads.language.transformer import TransformerLanguageModel
from atomo.workloads.models import build_model

RANKS: Final = 2
WINDOW: Final = 64
BATCH: Final = 16  # windows, or images, of a rank
RATE: Final = 1e-3
CODES: Final = (
    "sgd", "qsgd(bits=4)", "natural", "terngrad", "svd(rank=3)", "powersgd(rank=4)",
    "svd(rank=3, selection=top)", "onebit", "efsignsgd", "topk(ratio=0.01)", "topk(ratio=0.001)",
)  # fmt: skip
BEGIN, END = "<!-- adam -->\n", "<!-- end of adam -->\n"


class Task(Protocol):
    """A model and its batches."""

    def model(self) -> nn.Module:
        """Returns a model with its initial weights."""

    def batch(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Returns the inputs and targets of one rank's step."""

    def held_out(self) -> tuple[Tensor, Tensor]:
        """Returns the inputs and targets of the test split."""


@final
class Characters:
    """A character model on the text of Python's reference manual."""

    def __init__(self, width: int = 96) -> None:
        text = "".join(topics[name] for name in sorted(topics))
        letters = sorted(set(text))
        numbers = {letter: number for number, letter in enumerate(letters)}
        codes = torch.tensor([numbers[letter] for letter in text])
        self._letters, self._width, cut = len(letters), width, len(codes) * 9 // 10
        self._train, self._test = codes[:cut], codes[cut:]

    def model(self) -> nn.Module:
        return TransformerLanguageModel(self._letters, self._width, 2, 4, 0.0, True, WINDOW)

    def batch(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        last = len(self._train) - WINDOW - 1
        starts = torch.randint(last, (BATCH,), generator=generator)
        return windows(self._train, starts)

    def held_out(self) -> tuple[Tensor, Tensor]:
        return windows(self._test, torch.arange(0, len(self._test) - WINDOW - 1, 3 * WINDOW))


def windows(codes: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the windows that begin at `starts`, and the character after each of their
    characters.
    """
    places = starts[:, None] + torch.arange(WINDOW)
    return codes[places], codes[places + 1]


@final
class Digits:
    """LeNet on the embedded digits."""

    def __init__(self) -> None:
        from sklearn.datasets import load_digits

        digits = load_digits()
        images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 8 - 1
        images = nn.functional.interpolate(images, 28)
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
        self._images, self._labels = images[order], torch.tensor(digits.target)[order]

    def model(self) -> nn.Module:
        return build_model("LeNet", (1, 28, 28), 10)

    def batch(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        chosen = torch.randint(1437, (BATCH,), generator=generator)
        return self._images[chosen], self._labels[chosen]

    def held_out(self) -> tuple[Tensor, Tensor]:
        return self._images[1437:], self._labels[1437:]


TASKS: Final[Mapping[str, Callable[[], Task]]] = {
    "characters": Characters,
    "digits": Digits,
    "wide characters": lambda: Characters(192),
}
make_task = cache(lambda name: TASKS[name]())


@final
class Plain:
    """Gradients without a change."""

    def before(self, parameters: Sequence[Tensor]) -> None:
        """Changes the gradients of one rank before they are compressed."""

    def after(self, parameters: Sequence[Tensor]) -> None:
        """Changes the average before the optimizer sees it."""


@final
class Differences:
    """EF21 with momentum (Fatkhullin et al., 2023), through a residual memory.

    Each rank compresses the change of a moving average of its gradients, and all ranks add the
    averaged changes up. The optimizer gets an estimate of the gradient instead of a sum of delayed
    updates.
    """

    def __init__(self, eta: float) -> None:
        self._eta = eta
        self._mean: list[Tensor] = []
        self._estimate: list[Tensor] = []

    def before(self, parameters: Sequence[Tensor]) -> None:
        first = not self._mean
        if first:
            self._mean = [torch.zeros_like(p) for p in parameters]
            self._estimate = [torch.zeros_like(p) for p in parameters]
        for mean, parameter in zip(self._mean, parameters, strict=True):
            assert parameter.grad is not None
            change = (parameter.grad - mean) * (1.0 if first else self._eta)
            mean.add_(change)
            parameter.grad.copy_(change)

    def after(self, parameters: Sequence[Tensor]) -> None:
        for estimate, parameter in zip(self._estimate, parameters, strict=True):
            assert parameter.grad is not None
            parameter.grad.copy_(estimate.add_(parameter.grad))


@dataclass(frozen=True)
class Method:
    """Settings of a method, without the codec."""

    change: Callable[[], Plain | Differences] = Plain
    memory: str = ""  # empty: the default that compresses gradients
    dense_share: float = 0.0  # share of the first steps without compression
    warm_up: bool = False  # of the ratio, over the first fifth of the steps
    betas: tuple[float, float] = (0.9, 0.999)
    rate: float = RATE


METHODS: Final[Mapping[str, Method]] = {
    "plain": Method(),
    "dense first 10 %": Method(dense_share=0.1),
    "dense first 20 %": Method(dense_share=0.2),
    "ratio warm-up": Method(warm_up=True),
    "error x 0.99": Method(memory="residual(beta=0.99)"),
    "error x 0.9": Method(memory="residual(beta=0.9)"),
    "beta2 0.99": Method(betas=(0.9, 0.99)),
    "beta1 0": Method(betas=(0.0, 0.999)),
    "rate x 2": Method(rate=2 * RATE),
    "rate x 4": Method(rate=4 * RATE),
    "differences": Method(lambda: Differences(1.0), memory="residual"),
    "differences of a mean": Method(lambda: Differences(0.1), memory="residual"),
    "memory adam": Method(memory="adam"),
    "dense first 10 %; rate x 2": Method(dense_share=0.1, rate=2 * RATE),
    "dense first 10 %; memory adam": Method(memory="adam", dense_share=0.1),
    "momentum before": Method(memory="dgc", betas=(0.0, 0.999)),
}


@dataclass(frozen=True)
class Cell:
    """The result of one run."""

    task: str
    code: str
    method: str
    steps: int
    seed: int
    loss: float | None = None  # on the test split; None: not finite, or the settings are refused
    ratio: float = 0.0  # dense bytes over sent bytes
    error: str = ""

    @property
    def key(self) -> tuple[str, str, str, int, int]:
        """The identity of the run, without its results."""
        return self.task, self.code, self.method, self.steps, self.seed


def optimizer_of(method: Method, model: nn.Module) -> torch.optim.Optimizer:
    """Returns the optimizer of one rank."""
    return torch.optim.AdamW(
        model.parameters(), lr=method.rate, betas=method.betas, weight_decay=0.01
    )


def memory_of(cell: Cell) -> str:
    """Returns the memory of the method, or the default memory that compresses gradients."""
    name = cell.code.partition("(")[0]
    adam = name in CODECS and atomo.default_memory(cell.code, optimizer="adam") == "adam"
    return METHODS[cell.method].memory or ("residual" if adam else "auto")


def schedule_of(cell: Cell, method: Method) -> tuple[str, str]:
    """Returns the first code and the code schedule of the warm-up; empty: no warm-up."""
    name, _, ratio_text = cell.code.partition("(ratio=")
    if not method.warm_up or not ratio_text:
        return cell.code, ""
    last = float(ratio_text.rstrip(")"))
    stages = [ratio for ratio in (0.25, 0.063, 0.016, 0.004) if ratio > last]
    length = max(1, cell.steps // 5 // len(stages))
    codes = [*(f"{name}(ratio={ratio})" for ratio in stages), cell.code]
    later = [f"{number * length}: {code}" for number, code in enumerate(codes) if number]
    return codes[0], "; ".join(later)


def train_rank(cell: Cell, model: nn.Module, ranks: Direct) -> AveragedOptimizer:
    """Takes all steps of one rank; returns its optimizer."""
    method, task = METHODS[cell.method], make_task(cell.task)
    code, schedule = schedule_of(cell, method)
    wrapped = atomo.wrap_optimizer(
        optimizer_of(method, model), model, code, memory=memory_of(cell),
        seed=cell.seed,
        collective=ranks, dense_steps=round(method.dense_share * cell.steps),
        code_schedule=schedule,
    )  # fmt: skip
    change, parameters = method.change(), [p for p in model.parameters() if p.requires_grad]
    generator = torch.Generator().manual_seed(1000 * cell.seed + ranks.rank)
    for _ in range(cell.steps):
        inputs, targets = task.batch(generator)
        wrapped.zero_grad()
        loss = cross_entropy(model(inputs).flatten(0, -2), targets.flatten())
        if not math.isfinite(loss.item()):
            raise FloatingPointError(f"loss {loss.item()}")
        loss.backward()  # type: ignore[no-untyped-call]
        change.before(parameters)
        wrapped.average()
        change.after(parameters)
        wrapped.step()
    return wrapped


def run(cell: Cell) -> Cell:
    """Trains one cell; returns the cell with its result."""
    torch.manual_seed(cell.seed)
    first = make_task(cell.task).model()
    models = [copy.deepcopy(first) for _ in range(RANKS)]
    transports, errors = network(RANKS), list[str]()
    ratios = [0.0] * RANKS

    def body(rank: int) -> None:
        try:
            wrapped = train_rank(cell, models[rank], Direct(transports[rank], 120.0))
            ratios[rank] = wrapped.exchange.stats.ratio
        except (atomo.AtomoError, FloatingPointError) as error:
            errors.append(f"{type(error).__name__}: {error}")
            transports[rank].abort(1)

    threads = [threading.Thread(target=body, args=(rank,)) for rank in range(RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        return Cell(*cell.key, error=min(errors, key=len)[:200])
    return Cell(*cell.key, loss=held_out_loss(cell.task, models[0]), ratio=round(ratios[0], 1))


@torch.no_grad()
def held_out_loss(task: str, model: nn.Module) -> float:
    """Returns the cross entropy on the test split."""
    inputs, targets = make_task(task).held_out()
    model.eval()
    return round(cross_entropy(model(inputs).flatten(0, -2), targets.flatten()).item(), 4)


def read(path: Path) -> dict[tuple[str, str, str, int, int], Cell]:
    """Reads the results of an earlier run."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {cell.key: cell for cell in (Cell(**json.loads(line)) for line in lines)}


def fill(path: Path, requested: Sequence[Cell]) -> None:
    """Runs the missing cells, and appends each result to the file."""
    done = read(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    for cell in requested:
        if cell.key not in done:
            result = run(cell)
            with path.open("a") as out:
                out.write(json.dumps(asdict(result)) + "\n")
            print(result, flush=True)


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    """Yields every requested run."""
    for seed in range(options.seeds):
        for task in options.tasks.split(","):
            for code in (code.strip() for code in options.codes.split(";")):
                for method in options.methods.split(","):
                    yield Cell(task, code, method.strip(), options.steps, seed)


def table(results: Mapping[Any, Cell]) -> str:
    """Returns a row for each code and method: the mean loss above that of dense gradients."""
    columns = sorted({(cell.task, cell.steps) for cell in results.values()})
    losses = defaultdict[tuple[str, str], dict[tuple[str, int], list[Cell]]](dict)
    for cell in results.values():
        losses[cell.code, cell.method].setdefault((cell.task, cell.steps), []).append(cell)
    dense = losses["sgd", "plain"]
    names = ["code", "method", "fewer bytes"]
    names += [f"{task}, {steps} steps" for task, steps in columns]
    lines = [f"| {' | '.join(names)} |", "|" + " --- |" * len(names)]
    for (code, method), row in losses.items():
        shown = [text(row.get(column, []), dense.get(column, [])) for column in columns]
        ratio = max(cell.ratio for cell in next(iter(row.values())))
        lines.append(f"| `{code}` | {method} | {ratio:g}x | " + " | ".join(shown) + " |")
    return "\n".join(lines) + "\n"


def text(cells: Sequence[Cell], dense: Sequence[Cell]) -> str:
    """Returns the mean loss above that of dense runs with the same seeds, and the seed count."""
    if not cells:
        return ""
    if any(cell.loss is None for cell in cells):
        return next(cell.error for cell in cells if cell.loss is None).partition(":")[0]
    base = {cell.seed: cell.loss for cell in dense if cell.loss is not None}
    if cells[0].code == "sgd" and cells[0].method == "plain":
        return f"{statistics.mean(base.values()):.3f} ({len(base)})"
    over = [cell.loss - base[cell.seed] for cell in cells if cell.loss and cell.seed in base]
    return f"{statistics.mean(over):+.3f} ({len(over)})" if over else ""


def main() -> None:
    """Runs the missing cells, or writes the table of the stored results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--codes", default="; ".join(CODES), help="separated by ;")
    parser.add_argument("--methods", default="plain", help="separated by commas")
    parser.add_argument("--tasks", default="characters,digits", help=", ".join(TASKS))
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--table", type=Path, help="a page to write the table into; runs nothing")
    options = parser.parse_args()
    if options.table:
        before, _, after = options.table.read_text().partition(BEGIN)
        page = before + BEGIN + table(read(options.results)) + END + after.partition(END)[2]
        options.table.write_text(page)
        return
    torch.set_num_threads(1)
    fill(options.results, [*cells(options)])


if __name__ == "__main__":
    main()
