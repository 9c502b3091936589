"""A run as lines of text: the interface of displays, shared texts, and the plain display.

Ranks and evaluators import this module too, and do not load the live panel.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol, final, runtime_checkable

from atomo.config.comm_types import PARAMETER_SERVER
from atomo.core.number_text import bytes_text, duration_text, ratio_text
from atomo.core.process.program import NO_ROOM
from atomo.core.visible import visible
from atomo.training.evaluation.evaluation import AVERAGED, Evaluation
from atomo.training.job.events import (
    Caution,
    Ended,
    Event,
    Measuring,
    ProbedAgain,
    Saved,
    Started,
    StepDone,
    Storage,
)
from atomo.workloads import LOSS, Task, make_task

__all__ = [
    "Display",
    "Output",
    "PlainLines",
    "back_text",
    "evaluation_line",
    "exchanges",
    "foot_text",
    "headline",
    "hidden_text",
    "ignore_full_disk",
    "phases_ms",
    "rate_text",
]

# The phases of a step: `StepDone` has the seconds of each.
PHASES: Final = ("compute", "encode", "send", "wait", "follow", "decode", "update")


@runtime_checkable
class Output(Protocol):
    """Takes text, as `sys.stdout` does."""

    def write(self, text: str, /) -> object:
        """Writes text."""

    def flush(self) -> None:
        """Flushes the text that was written."""


@runtime_checkable
class Display(Protocol):
    """Shows a run to a person."""

    def show(self, event: Event | Evaluation) -> None:
        """Shows an event or an evaluation."""

    def note(self, line: str) -> None:
        """Shows a line that is no event."""

    def close(self) -> None:
        """Restores the terminal."""


@final
class PlainLines:
    """A display that prints one line for each event."""

    def __init__(self, out: Output, log_interval: int) -> None:
        self._out, self._log_interval = out, log_interval
        self._last_step, self._samples = 0, ""
        self._shown = 0  # the last step with a line

    def show(self, event: Event | Evaluation) -> None:
        match event:
            case Started():
                self._last_step, self._samples = event.last_step, event.samples
                self.note(headline(event))
                if event.chosen:
                    self.note(event.chosen)
                if event.fusion:
                    self.note(event.fusion)
                if event.rounds:
                    self.note(event.rounds)
            case StepDone():
                if self._is_due(event):
                    self._shown = event.step
                    self.note(step_line(event, self._last_step, self._samples))
            case Evaluation():
                self.note(evaluation_line(event))
            case Caution():
                self.note(f"caution: {event.text}")
            case Storage():
                self.note(f"storage: {event.text}")
            case Measuring() | ProbedAgain():
                self.note(event.text)
            case Saved():
                self.note(f"checkpoint {event.manifest}")
            case Ended():
                self.note(f"training ended at step {event.step}: {event.reason}")

    def _is_due(self, step: StepDone) -> bool:
        """True for the first exchange after each interval: steps between exchanges of local steps
        have no bytes, and the loss of one worker.
        """
        passed = step.step // self._log_interval > self._shown // self._log_interval
        return step.step == self._last_step or (passed and exchanges(step))

    def note(self, line: str) -> None:
        with ignore_full_disk():
            self._out.write(visible(line) + "\n")
            self._out.flush()

    def close(self) -> None:
        """Does nothing: the terminal was not changed."""


@contextmanager
def ignore_full_disk() -> Iterator[None]:
    """Ignores errors of a full disk: the files of the run may be on another disk. The stream keeps
    the unwritten text, as far as it can, and writes it when there is room. Text that is still
    unwritten at the end raises an error then.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise


def exchanges(step: StepDone) -> bool:
    """True if a step had an exchange; False: it was a local step in the middle of a round."""
    return step.asked > 0 or step.dense_bytes > 0


def phases_ms(step: StepDone) -> list[tuple[str, float]]:
    """Returns the phases of a step with their milliseconds; `follow` only if it took time."""
    named = [(name, 1e3 * float(getattr(step, f"{name}_s"))) for name in PHASES]
    return [(name, ms) for name, ms in named if ms or name != "follow"]


def headline(event: Started) -> str:
    """Describes the run before its first step: the model, the data and the processes."""
    begin = "" if event.first_step == 1 else f", continued at step {event.first_step}"
    momentum = ", Nesterov momentum" if event.nesterov else ""
    return (
        f"{event.network} ({event.parameters:,} parameters) on {event.dataset} ({event.images:,} "
        f"{event.samples}), code {event.code}, memory {event.memory}{momentum}, "
        f"{processes_text(event)}, {event.steps_per_epoch} steps an epoch, "
        f"{event.last_step} steps{begin}; {event.train_dir}"
    )


def step_line(event: StepDone, last_step: int, samples: str) -> str:
    times = [f"{name} {ms:.1f}" for name, ms in phases_ms(event)]
    times += filter(None, [hidden_text(event)])
    return (
        f"step {event.step}/{last_step} epoch {event.epoch:.2f} loss {event.loss:.4f} "
        f"lr {rate_text(event)} {event.images_per_s:.0f} {samples}/s "
        f"sent {bytes_text(event.up_bytes)} (dense {bytes_text(event.dense_bytes)}, "
        f"{ratio_text(event.dense_bytes, event.up_bytes)}) {back_text(event)} "
        f"ms: {' '.join(times)} ETA {duration_text(event.eta_s)}"
    )


def processes_text(event: Started) -> str:
    """Describes the processes of the run."""
    spares = f" + {event.spares} spare{'s' * (event.spares > 1)}" if event.spares else ""
    if event.comm_type == PARAMETER_SERVER:
        return f"1 master + {event.workers} workers{spares}"
    return f"{event.workers} workers{spares}, {event.comm_type}"


def back_text(step: StepDone) -> str:
    """Returns the bytes received from the master, or from the other ranks."""
    return f"{'received' if step.exchange_s else 'down'} {bytes_text(step.down_bytes)}"


def hidden_text(step: StepDone) -> str:
    """Returns the share of the exchange that the backward pass hid, if it is known."""
    return f"hidden {step.hidden_s / step.exchange_s:.0%}" if step.exchange_s else ""


def rate_text(step: StepDone) -> str:
    """Returns the learning rate, and the factor by which the noise of the codec lowers it."""
    return f"{step.lr:.4g}" + (f" x {step.damping:.2g}" if step.damping < 1 else "")


def evaluation_line(event: Evaluation) -> str:
    """Returns one line for a checkpoint's test results."""
    task = make_task(event.task)
    results = values_text(task, event, "")
    if any(key.startswith(AVERAGED) for key in event.values):
        results += f"; average {values_text(task, event, AVERAGED)}"
    return f"step {event.step}: test {results} on {event.samples:,} {task.samples}"


def values_text(task: Task, event: Evaluation, prefix: str) -> str:
    """Returns the values with this prefix: of the trained or of the averaged weights."""
    shown = [metric for metric in (*task.metrics, LOSS) if prefix + metric.key in event.values]
    return " ".join(
        f"{metric.shown} {metric.text(event.values[prefix + metric.key])}" for metric in shown
    )


def foot_text(event: Evaluation) -> str:
    """Returns the main metric of a checkpoint's test results."""
    metric = make_task(event.task).metrics[0]
    return f"test {metric.shown} {metric.text(event.values[metric.key])} at step {event.step}"
