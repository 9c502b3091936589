"""Tables and pictures of the records of local_steps.py."""

import json
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final, final

from atomo.core.plotting import pyplot_for
from parts.local_steps.methods import METHODS
from parts.local_steps.plans import PRICE, RATES, STEPS, UNLIMITED, learning_rate, timing_name
from parts.local_steps.workloads import WORKLOADS

__all__ = ["read", "write_figures"]

Record = Mapping[str, Any]
PAGE: Final = "local-steps.md"
NEVER: Final = ""
HOOKS: Final = ("DDP", "DDP bf16", "DDP PowerSGD")


@final
class Study:
    """The records, and the figures that follow from them."""

    def __init__(self, folder: Path) -> None:
        self._curves = read(folder / "local_steps_curves.jsonl")
        self._times = read(folder / "local_steps_times.jsonl")
        self.whole = read(folder / "local_steps_whole.jsonl")

    def runs(self, workload: str, method: str) -> list[Record]:
        """Returns the runs of a method at its learning rate, without those of sweeps."""
        runs = (r for r in self._curves if (r["workload"], r["method"]) == (workload, method))
        rate = learning_rate(workload, method)
        return [run for run in runs if run["seed"] and run["rate"] == rate]

    def sweep(self, workload: str) -> list[Record]:
        """Returns the runs of a workload that compared learning rates."""
        return [r for r in self._curves if r["workload"] == workload and not r["seed"]]

    def steps_to_target(self, workload: str, method: str) -> list[int | None]:
        """Returns the steps to the target of each seed; None: not reached."""
        return [steps_of(run) for run in self.runs(workload, method)]

    def median_steps(self, workload: str, method: str) -> float | None:
        """Returns the median steps to the target; None: a seed does not reach it, or no run."""
        steps = self.steps_to_target(workload, method)
        reached = [number for number in steps if number is not None]
        return statistics.median(reached) if steps and len(reached) == len(steps) else None

    def loss(self, workload: str, method: str, step: int) -> list[float]:
        """Returns the test loss of each seed at a step."""
        points = (point for run in self.runs(workload, method) for point in run["points"])
        return [point[2] for point in points if point[0] == step]

    @cached_property
    def links(self) -> list[str]:
        """The links that were timed."""
        return [link for link in (UNLIMITED, *reversed(RATES)) if self.timed(link)]

    def timed(self, link: str) -> list[Record]:
        """Returns the timings over a link."""
        return [record for record in self._times if record["link"] == link]

    def least_local_s(self, workload: str, link: str | None = None, machine: int = 1) -> float:
        """Returns the least seconds of a step without an exchange, which all methods share; None:
        over all links.
        """
        records = (r for r in self._times if r["workload"] == workload)
        chosen = (r for r in records if link in (None, r["link"]) and machine_of(r) == machine)
        return float(min(s for record in chosen for s in record["local_s"]))

    def exchange(self, workload: str, link: str, method: str) -> tuple[float, float] | None:
        """Returns the seconds that an exchange adds to a step, and the bytes that a rank sends.

        Both steps are the least on the same machine, since other load only adds to their times.
        """
        key = workload, timing_name(method)
        records = [r for r in self.timed(link) if (r["workload"], timing_name(r["method"])) == key]
        if not records:
            return None
        least_s = min(seconds for record in records for seconds in record["exchange_s"])
        sent = statistics.median(count for record in records for count in record["sent_bytes"])
        local_s = self.least_local_s(workload, link, machine_of(records[0]))
        return max(0.0, least_s - local_s), sent

    def step_s(self, workload: str, link: str, method: str) -> float | None:
        """Returns the mean seconds of a step, with its share of an exchange."""
        exchange = self.exchange(workload, link, method)
        if exchange is None:
            return None
        return self.least_local_s(workload) + exchange[0] / METHODS[method].every

    def seconds(self, workload: str, link: str, method: str) -> float | None:
        """Returns the seconds to the target, evaluations apart."""
        steps, step_s = self.median_steps(workload, method), self.step_s(workload, link, method)
        return None if steps is None or step_s is None else steps * step_s

    def sent_bytes(self, workload: str, method: str) -> float | None:
        """Returns the bytes that a worker sends until the target."""
        steps = self.median_steps(workload, method)
        exchange = self.exchange(workload, self.links[-1], method) if self.links else None
        return (
            None
            if steps is None or exchange is None
            else steps * exchange[1] / METHODS[method].every
        )


def machine_of(record: Record) -> int:
    """Returns the number of the machine of a timing; records without one are of the first."""
    return int(record.get("machine", 1))


def read(path: Path) -> list[Record]:
    """Returns the records of a file; none if there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def steps_of(run: Record) -> int | None:
    """Returns the steps after which an evaluation is at the target; None: none is."""
    kind = WORKLOADS[run["workload"]]
    sign = 1 if kind.rising else -1
    points = run["points"]
    return next((int(p[0]) for p in points if sign * p[1] >= sign * kind.target), None)


def write_figures(records: Path, docs: Path) -> None:
    """Writes the tables into the page, between their marks, and the picture beside it."""
    study, page = Study(records), docs / PAGE
    text = page.read_text()
    for name, table in tables(study):
        text = between(text, name, table)
    page.write_text(text)
    draw(study, docs / "local-steps.png")


def between(text: str, name: str, table: str) -> str:
    r"""Replaces the lines between the marks of a table.

    >>> between("<!-- a -->\nold\n<!-- end of a -->\n", "a", "new\n")
    '<!-- a -->\nnew\n<!-- end of a -->\n'
    """
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    before, mark, after = text.partition(begin)
    return before + mark + table + end + after.partition(end)[2] if mark else text


def tables(study: Study) -> Iterator[tuple[str, str]]:
    """Yields the name and the text of each table."""
    for workload in STEPS:
        yield f"seconds of {workload}", seconds_table(study, workload)
        yield f"price of {workload}", price_table(study, workload)
    yield "ResNet-20", photographs_table(study)
    yield "whole runs", whole_table(study)


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a table in Markdown."""
    lines = [
        " | ".join(heads),
        " | ".join("---" for _ in heads),
        *(" | ".join(row) for row in rows),
    ]
    return "".join(f"| {line} |\n" for line in lines)


def seconds_table(study: Study, workload: str) -> str:
    """Returns steps, bytes and seconds to the target, by method and link."""
    rows = []
    for method in METHODS:
        steps = study.steps_to_target(workload, method)
        if not steps:
            continue
        seconds = [study.seconds(workload, link, method) for link in study.links]
        reached = ", ".join("never" if number is None else str(number) for number in steps)
        sent = study.sent_bytes(workload, method)
        row = [method, reached, number_text(sent, lambda s: f"{s / 1e6:.2f}")]
        rows.append([*row, *(number_text(s, lambda s: f"{s:.0f}") for s in seconds)])
    return markdown(["method", "steps to it", "MB sent", *study.links], rows)


def number_text(number: float | None, text: Callable[[float], str]) -> str:
    """Formats a number; empty if there is none."""
    return NEVER if number is None else text(number)


def price_table(study: Study, workload: str) -> str:
    """Returns the test loss at equal samples, and what it is above that of DDP."""
    step = PRICE_AT[workload]
    base = study.loss(workload, "DDP", step)
    rows = []
    for method in METHODS:
        losses = study.loss(workload, method, step)
        if losses and base:
            mean = statistics.mean(losses)
            above = 100 * (mean / statistics.mean(base[: len(losses)]) - 1)
            spread = f"{min(losses):.4f} to {max(losses):.4f}"
            rows.append([method, f"{mean:.4f}", spread, str(len(losses)), f"{above:+.1f} %"])
    return markdown(["method", f"loss after {step} steps", "seeds", "number", "price"], rows)


PRICE_AT: Final[Mapping[str, int]] = {"LeNet": 256, "characters": STEPS["characters"]}


def photographs_table(study: Study) -> str:
    """Returns the accuracy and the bytes of ResNet-20 on CIFAR-10."""
    rows = []
    for method in ("DDP", *PRICE):
        for run in study.runs("ResNet-20", method):
            sent = run["sent_bytes"] or run["steps"] * 4 * 269_722
            accuracy = f"{run['points'][-1][1]:.1%}"
            rows.append([method, str(run["seed"]), accuracy, f"{sent / 1e6:.2f}"])
    return markdown(["method", "seed", "top-1 after 500 steps", "MB sent by a replica"], rows)


TICKS: Final = (10, 20, 50, 100, 200, 500, 1000, 2000)


def whole_table(study: Study) -> str:
    """Returns the real seconds of whole runs beside the products."""
    heads = ["workload", "method", "link", "steps", "seconds of training", "product"]
    rows = [
        [
            run["workload"],
            run["method"],
            run["link"],
            f"{steps_of(run)}",
            f"{run['train_s']:.0f}",
            number_text(
                study.seconds(run["workload"], run["link"], run["method"]), "{:.0f}".format
            ),
        ]
        for run in study.whole
    ]
    return markdown(heads, rows)


def draw(study: Study, path: Path) -> None:
    """Draws seconds to the target over the rate of links, a panel a workload."""
    pyplot = pyplot_for(str(path))
    figure, panels = pyplot.subplots(1, len(STEPS), figsize=(13, 5.2), layout="constrained")
    links = [link for link in study.links if link != UNLIMITED]
    for axis, workload in zip(panels, STEPS, strict=True):
        for method in METHODS:
            seconds = [study.seconds(workload, link, method) for link in links]
            if any(seconds):
                marks = [float("nan") if s is None else s for s in seconds]
                axis.plot([*map(megabits, links)], marks, label=method, **style(method))
        axis.set(xscale="log", yscale="log", xlabel="Mbit/s of each link, 20 ms there and back")
        axis.set(ylabel="seconds to the target", title=title(workload))
        axis.set_xticks([megabits(link) for link in links], [f"{megabits(k):g}" for k in links])
        axis.set_yticks(TICKS, [str(tick) for tick in TICKS])
        axis.minorticks_off()
        axis.set_ylim(10, 2000)
        axis.grid(alpha=0.3)
        axis.legend(fontsize="small", ncols=2)
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


OTHERS: Final = ("C3", "C5", "C6", "C8", "C9", "k", "#8c6d31", "#393b79", "#ad494a", "#7b4173")
"""Colours of the methods of others, in their order."""


def style(method: str) -> dict[str, Any]:
    """Returns the line of a method: dashed for others', a colour for each number of steps."""
    every = METHODS[method].every
    ours = method.startswith("ours")
    other = "x" if ours else {"post-local": "v", "torchft": "*"}.get(METHODS[method].kind, "d")
    colours = {1: "C7", 8: "C0", 16: "C4", 32: "C1", 128: "C2"}
    marks = {"sgd": "s", "lloydmax": "^", "tiletopk": "o"}
    mark = next((marks[word] for word in method.split() if word in marks), other)
    others = [name for name in METHODS if METHODS[name].kind in ("ddp", "post-local", "torchft")]
    colour = colours[every] if ours else OTHERS[others.index(method) % len(OTHERS)]
    return {"marker": mark, "linestyle": "-" if ours else "--", "color": colour}


def title(workload: str) -> str:
    """Returns the workload and its target."""
    kind = WORKLOADS[workload]
    target = f"{kind.target:.1%}" if kind.rising else f"a loss of {kind.target:g}"
    return f"{workload} to {target}, four workers"


def megabits(link: str) -> float:
    """Returns the rate of a link.

    >>> megabits("1gbit"), megabits("50mbit")
    (1000.0, 50.0)
    """
    number = float(link.rstrip("gmbit"))
    return 1000 * number if link.endswith("gbit") else number
