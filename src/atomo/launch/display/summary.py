"""The closing table of a run."""

from collections import Counter
from pathlib import Path
from typing import final

from rich.table import Table
from rich.text import Text

from atomo.config.comm_types import PARAMETER_SERVER
from atomo.launch.display.text import bytes_text, duration_text, ratio_text
from atomo.launch.display.totals import GradientTotals
from atomo.training.evaluation.evaluation import Evaluation
from atomo.training.job.events import Ended, Event, Saved, Started, StepDone, Storage
from atomo.workloads import make_task

__all__ = ["STRAGGLES", "Summary"]

STRAGGLES = 1.5  # times the median of all workers' times; lower => more of them are named
PARTS = ("compute", "encode", "send", "wait", "follow")  # of a worker's step


@final
class Summary:
    """Adds up the events of a run."""

    def __init__(self) -> None:
        self.started: Started | None = None
        self.last: StepDone | None = None
        self.ended: Ended | None = None
        self.evaluation: Evaluation | None = None  # the latest
        self._best: Evaluation | None = None
        self.steps = self._up = self._down = self._dense = self._whole = 0
        self._seconds = self._exchange_s = self._hidden_s = 0.0
        self._parts = dict.fromkeys(PARTS, 0.0)  # seconds
        self._gradients, self._images = GradientTotals(), GradientTotals()
        self._refused: Counter[tuple[int, str]] = Counter()  # frames, by rank and fault
        self._slowest: Counter[int] = Counter()  # steps in which a worker lagged behind
        self._saved = False
        self._storage: dict[str, Storage] = {}  # the latest of each thing that is written

    def add(self, event: Event | Evaluation) -> None:
        """Takes in one event."""
        match event:
            case Started():
                self.started = event
            case StepDone():
                self.last = event
                self.steps += 1
                self._up += event.up_bytes
                self._down += event.down_bytes
                self._dense += event.dense_bytes
                self._whole += self._uncoded(event)
                self._seconds += event.step_s
                self._gradients += GradientTotals(
                    event.asked, event.workers, event.late, event.lost, event.refused
                )
                self._images += GradientTotals(
                    event.images_asked,
                    event.images_used,
                    event.images_late,
                    event.images_lost,
                    event.images_refused,
                )
                self._refused.update(zip(event.refused_from, event.refused_for, strict=True))
                if event.slowness >= STRAGGLES:
                    self._slowest[event.slowest] += 1
                for part in self._parts:
                    self._parts[part] += getattr(event, f"{part}_s")
                self._exchange_s += event.exchange_s
                self._hidden_s += event.hidden_s
            case Saved():
                self._saved = True
            case Storage():
                self._storage[event.what] = event
            case Evaluation():
                self.evaluation = event
                metric = make_task(event.task).metrics[0]
                value = event.values[metric.key]
                if not self._best or metric.better(value, self._best.values[metric.key]):
                    self._best = event
            case Ended():
                self.ended = event
                self._gradients += GradientTotals(
                    late=event.late, lost=event.lost, refused=event.refused
                )
                self._images += GradientTotals(
                    late=event.images_late, lost=event.images_lost, refused=event.images_refused
                )

    def rows(self) -> list[tuple[str, str]]:
        """Returns name and value of each line of the table."""
        rows = []
        latest = self.last or self.ended
        if self.evaluation:
            rows += self._results(self.evaluation, latest.step if latest else 0)
        if latest:
            rows.append(("steps", f"{latest.step:,}"))
        if self.last and self.steps:
            up, dense = self._up / self.steps, self._dense / self.steps
            down, whole = self._down / self.steps, self._whole / self.steps
            rows += [
                ("training time", duration_text(self._seconds)),
                ("gradient bytes per step", f"{bytes_text(up)} (dense {bytes_text(dense)})"),
                ("ratio to dense", f"{ratio_text(dense, up)} fewer bytes"),
                self._way_back(down, whole),
                ("both ways", f"{ratio_text(dense + whole, up + down)} fewer bytes"),
                ("time per step", self._times()),
            ]
            samples = self.started.samples if self.started else "images"
            tallies = ("gradients", self._gradients), (samples, self._images)
            rows += [(name, tally.text) for name, tally in tallies if tally.text]
            rows += [*self._strangers(), *self._stragglers()]
            if self._exchange_s:
                hidden = f"{self._hidden_s / self._exchange_s:.0%} of the exchange"
                rows.append(("beside the backward pass", hidden))
        if self.started:
            folder = nearby(Path(self.started.train_dir))
            if self._saved or self.started.first_step > 1:
                rows.append(("checkpoints", f"{folder}/step-*.json"))
            rows.append(("metrics", f"{folder}/metrics.jsonl"))
            rows += self._failures()
            if self.evaluation:
                rows.append(("evaluations", f"{folder}/evaluations.jsonl"))
                rows.append(("TensorBoard", f"{folder}/tensorboard"))
        return rows

    def _stragglers(self) -> list[tuple[str, str]]:
        """Names the workers that lagged, and in how many steps."""
        if not self._slowest or not self.last:
            return []
        told = [f"worker {rank}: {count:,} steps" for rank, count in self._slowest.most_common(3)]
        name = f"slower than {STRAGGLES:g} times the median"
        return [(name, ", ".join(told))]

    def _strangers(self) -> list[tuple[str, str]]:
        """Names the workers whose frames were refused, and the reasons."""
        if not self._refused:
            return []
        found = sorted(self._refused.items())
        told = [f"worker {rank}: {count:,} {fault}" for (rank, fault), count in found]
        return [("refused frames", ", ".join(told))]

    def _results(self, found: Evaluation, last_step: int) -> list[tuple[str, str]]:
        """Returns the last checkpoint's result, and the best one's where that was better."""
        metric = make_task(found.task).metrics[0]

        def told(one: Evaluation, at: bool) -> str:
            return metric.text(one.values[metric.key]) + (f" (of step {one.step})" if at else "")

        rows = [(f"final test {metric.title}", told(found, found.step != last_step))]
        best = self._best
        if best and metric.better(best.values[metric.key], found.values[metric.key]):
            rows.append((f"best test {metric.title}", told(best, True)))
        return rows

    def _failures(self) -> list[tuple[str, str]]:
        """Names the files that could not be written, if any."""
        failed = max(
            sum(one.failures for one in self._storage.values()),
            self.last.storage_failures if self.last else 0,
        )
        if not failed:
            return []
        out = [what for what, one in self._storage.items() if not one.works]
        state = f"not written at the end: {', '.join(out)}" if out else "all was written later"
        return [("failed attempts to write", f"{failed} ({state})")]

    def _uncoded(self, step: StepDone) -> int:
        """Bytes of all weights, to every worker; without a master, of the dense gradients."""
        if self._alike():
            return step.dense_bytes
        return 4 * self.started.parameters * self.started.workers if self.started else 0

    def _way_back(self, down: int | float, whole: int | float) -> tuple[str, str]:
        """Tells the bytes that came to workers, and how many they would be without compression."""
        if self._alike():
            return "bytes received per step", f"{bytes_text(down)} (dense {bytes_text(whole)})"
        return "bytes down per step", f"{bytes_text(down)} (weights {bytes_text(whole)})"

    def _alike(self) -> bool:
        """True if all ranks send to each other, and none of them is a master."""
        return self.started is not None and self.started.comm_type != PARAMETER_SERVER

    def _times(self) -> str:
        """Returns the time of a mean step, and its parts at the workers."""
        parts = {part: 1e3 * total / self.steps for part, total in self._parts.items()}
        told = ", ".join(f"{part} {ms:.0f}" for part, ms in parts.items() if ms >= 0.5)
        return f"{1e3 * self._seconds / self.steps:.0f} ms" + (f" ({told})" if told else "")

    def title(self) -> str:
        """Describes the end of the run in a word or two."""
        if self.ended is None:
            return "Ended early"
        if self.ended.reason != "done":
            return self.ended.reason.capitalize()
        return "Finished" if self.last else "Nothing was left to do"

    def table(self) -> Table:
        """Returns the table."""
        table = Table(title=self.title(), show_header=False)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")  # a path must be whole to be copied
        for name, value in self.rows():
            table.add_row(name, Text(value))  # of a string rich would take [x] for markup
        return table


def nearby(folder: Path) -> Path:
    """Returns the folder as seen from here, where that is shorter."""
    try:
        here = Path.cwd()
    except FileNotFoundError:  # it was removed while the run went on
        return folder
    return folder.relative_to(here) if folder.is_relative_to(here) else folder
