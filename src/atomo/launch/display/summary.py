"""The closing table of a run."""

from collections import Counter
from pathlib import Path
from typing import final

from rich.table import Table
from rich.text import Text

from atomo.config.comm_types import PARAMETER_SERVER
from atomo.core.number_text import bytes_text, duration_text, ratio_text
from atomo.launch.display.lines import exchanges
from atomo.launch.display.totals import GradientTotals
from atomo.training.evaluation.evaluation import Evaluation
from atomo.training.job.events import Ended, Event, Saved, Started, StepDone, Storage
from atomo.workloads import make_task

__all__ = ["STRAGGLES", "Summary"]

STRAGGLES = 1.5  # times the median of all workers; lower => more workers are named
PARTS = ("compute", "encode", "send", "wait", "follow")  # parts of a worker's step


@final
class Summary:
    """Totals of the events of a run."""

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
        self._slowest: Counter[int] = Counter()  # steps in which a worker lagged
        self._saved = False
        self._storage: dict[str, Storage] = {}  # the latest event of each written file

    def add(self, event: Event | Evaluation) -> None:
        """Adds one event to the totals."""
        match event:
            case Started():
                self.started = event
            case StepDone():
                self._add_step(event)
            case Saved():
                self._saved = True
            case Storage():
                self._storage[event.what] = event
            case Evaluation():
                self._add_evaluation(event)
            case Ended():
                self.ended = event
                self._gradients += GradientTotals(
                    late=event.late, lost=event.lost, refused=event.refused
                )
                self._images += GradientTotals(
                    late=event.images_late, lost=event.images_lost, refused=event.images_refused
                )

    def _add_step(self, step: StepDone) -> None:
        is_round = self.started is not None and self.started.comm_type == PARAMETER_SERVER
        self.steps += max(1, step.round_steps if is_round else 1)
        self.last = step
        self._up += step.up_bytes
        self._down += step.down_bytes
        self._dense += step.dense_bytes
        self._whole += self._uncoded(step)
        self._seconds += step.step_s
        self._gradients += GradientTotals(
            step.asked, step.workers if exchanges(step) else 0, step.late, step.lost, step.refused
        )
        self._images += GradientTotals(
            step.images_asked,
            step.images_used,
            step.images_late,
            step.images_lost,
            step.images_refused,
        )
        self._refused.update(zip(step.refused_from, step.refused_for, strict=True))
        if step.slowness >= STRAGGLES:
            self._slowest[step.slowest] += 1
        for part in self._parts:
            self._parts[part] += getattr(step, f"{part}_s")
        self._exchange_s += step.exchange_s
        self._hidden_s += step.hidden_s

    def _add_evaluation(self, evaluation: Evaluation) -> None:
        self.evaluation = evaluation
        metric = make_task(evaluation.task).metrics[0]
        value = evaluation.values[metric.key]
        if not self._best or metric.better(value, self._best.values[metric.key]):
            self._best = evaluation

    def rows(self) -> list[tuple[str, str]]:
        """Returns the name and the value of each row of the table."""
        rows = []
        latest = self.last or self.ended
        if self.evaluation:
            rows += self._results(self.evaluation, latest.step if latest else 0)
        if latest:
            rows.append(("steps", f"{latest.step:,}"))
        if self.last and self.steps:
            rows += self._step_rows()
        if self.started:
            rows += self._file_rows(self.started)
        return rows

    def _step_rows(self) -> list[tuple[str, str]]:
        """Returns the rows of bytes, times and gradients."""
        up, dense = self._up / self.steps, self._dense / self.steps
        down, whole = self._down / self.steps, self._whole / self.steps
        rows = [
            ("training time", duration_text(self._seconds)),
            ("gradient bytes per step", f"{bytes_text(up)} (dense {bytes_text(dense)})"),
            ("ratio to dense", f"{ratio_text(dense, up)} fewer bytes"),
            self._received_bytes(down, whole),
            ("both ways", f"{ratio_text(dense + whole, up + down)} fewer bytes"),
            ("time per step", self._times()),
        ]
        samples = self.started.samples if self.started else "images"
        totals = ("gradients", self._gradients), (samples, self._images)
        rows += [(name, total.text) for name, total in totals if total.text]
        rows += [*self._refused_frames(), *self._stragglers()]
        if self._exchange_s:
            hidden = f"{self._hidden_s / self._exchange_s:.0%} of the exchange"
            rows.append(("during the backward pass", hidden))
        return rows

    def _file_rows(self, started: Started) -> list[tuple[str, str]]:
        """Returns the rows of the files of the run."""
        folder = nearby(Path(started.train_dir))
        rows = []
        if self._saved or started.first_step > 1:
            rows.append(("checkpoints", f"{folder}/step-*.json"))
        rows.append(("metrics", f"{folder}/metrics.jsonl"))
        rows += self._failures()
        if self.evaluation:
            rows.append(("evaluations", f"{folder}/evaluations.jsonl"))
            rows.append(("TensorBoard", f"{folder}/tensorboard"))
        return rows

    def _stragglers(self) -> list[tuple[str, str]]:
        """Returns the row of lagging workers, with the number of steps of each."""
        if not self._slowest or not self.last:
            return []
        workers = [
            f"worker {rank}: {count:,} steps" for rank, count in self._slowest.most_common(3)
        ]
        name = f"slower than {STRAGGLES:g} times the median"
        return [(name, ", ".join(workers))]

    def _refused_frames(self) -> list[tuple[str, str]]:
        """Returns the row of refused frames, with their senders and reasons."""
        if not self._refused:
            return []
        counts = sorted(self._refused.items())
        workers = [f"worker {rank}: {count:,} {fault}" for (rank, fault), count in counts]
        return [("refused frames", ", ".join(workers))]

    def _results(self, latest: Evaluation, last_step: int) -> list[tuple[str, str]]:
        """Returns the rows of the last checkpoint and, if it is better, of the best checkpoint."""
        metric = make_task(latest.task).metrics[0]

        def result_text(evaluation: Evaluation, with_step: bool) -> str:
            text = metric.text(evaluation.values[metric.key])
            return f"{text} (of step {evaluation.step})" if with_step else text

        rows = [(f"final test {metric.title}", result_text(latest, latest.step != last_step))]
        best = self._best
        if best and metric.better(best.values[metric.key], latest.values[metric.key]):
            rows.append((f"best test {metric.title}", result_text(best, True)))
        return rows

    def _failures(self) -> list[tuple[str, str]]:
        """Returns the row of failed attempts to write files, if any."""
        failed = max(
            sum(storage.failures for storage in self._storage.values()),
            self.last.storage_failures if self.last else 0,
        )
        if not failed:
            return []
        out = [name for name, storage in self._storage.items() if not storage.works]
        state = (
            f"not written at the end: {', '.join(out)}" if out else "all files were written later"
        )
        return [("failed attempts to write", f"{failed} ({state})")]

    def _uncoded(self, step: StepDone) -> int:
        """Returns the bytes to all workers in a step without compression: weights from a master, or
        dense gradients without a master.
        """
        if self._is_replicated():
            return step.dense_bytes
        return 4 * self.started.parameters * self.started.workers if self.started else 0

    def _received_bytes(self, down: int | float, whole: int | float) -> tuple[str, str]:
        """Returns the row of the bytes that workers received, with and without compression."""
        if self._is_replicated():
            return "bytes received per step", f"{bytes_text(down)} (dense {bytes_text(whole)})"
        return "bytes down per step", f"{bytes_text(down)} (weights {bytes_text(whole)})"

    def _is_replicated(self) -> bool:
        """True if the run has no master."""
        return self.started is not None and self.started.comm_type != PARAMETER_SERVER

    def _times(self) -> str:
        """Returns the mean time of a step, and its parts on the workers."""
        parts = {part: 1e3 * total / self.steps for part, total in self._parts.items()}
        times = ", ".join(f"{part} {ms:.0f}" for part, ms in parts.items() if ms >= 0.5)
        return f"{1e3 * self._seconds / self.steps:.0f} ms" + (f" ({times})" if times else "")

    def title(self) -> str:
        """Returns the title: the end of the run in one or two words."""
        if self.ended is None:
            return "Ended early"
        if self.ended.reason != "done":
            return self.ended.reason.capitalize()
        return "Finished" if self.last else "No steps were left"

    def table(self) -> Table:
        """Renders the closing table."""
        table = Table(title=self.title(), show_header=False)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")  # a user must be able to copy a whole path
        for name, value in self.rows():
            table.add_row(name, Text(value))  # in a string, rich would read [x] as markup
        return table


def nearby(folder: Path) -> Path:
    """Returns the folder relative to the current folder, if it is in the current folder."""
    try:
        here = Path.cwd()
    except FileNotFoundError:  # removed during the run
        return folder
    return folder.relative_to(here) if folder.is_relative_to(here) else folder
