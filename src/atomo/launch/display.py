"""What a run looks like while it goes on: plain lines, or a live panel on a terminal."""

import time
from typing import Protocol, final, runtime_checkable

from rich.console import Console, Group
from rich.live import Live as RichLive
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from atomo.comm_types import PARAMETER_SERVER
from atomo.launch.summary import Summary
from atomo.launch.text import bytes_text, duration_text, ratio_text
from atomo.tasks import LOSS, Task, make_task
from atomo.training.evaluation import AVERAGED, Evaluation
from atomo.training.events import Caution, Ended, Event, Saved, Started, StepDone

__all__ = ["Display", "Live", "Plain"]

REFRESH_PER_S = 5
ECHO = "^C^C"  # what a terminal shows of Ctrl-C must not wrap: the panel would lose its place
# Of a step: `StepDone` has the seconds of each.
PHASES = ("compute", "encode", "send", "wait", "follow", "decode", "update")


@runtime_checkable
class Output(Protocol):
    """Takes text, as `sys.stdout` does."""

    def write(self, text: str, /) -> object:
        """Takes in some text."""

    def flush(self) -> None:
        """Lets it be seen."""


@runtime_checkable
class Display(Protocol):
    """Shows a run to a person."""

    def show(self, event: Event | Evaluation) -> None:
        """Takes in what happened."""

    def note(self, line: str) -> None:
        """Shows a line that is no event."""

    def close(self) -> None:
        """Leaves the terminal as it was."""


@final
class Plain:
    """One line for everything worth one."""

    def __init__(self, out: Output, log_interval: int) -> None:
        self._out, self._log_interval = out, log_interval
        self._last_step, self._samples = 0, ""

    def show(self, event: Event | Evaluation) -> None:
        match event:
            case Started():
                self._last_step, self._samples = event.last_step, event.samples
                self.note(headline(event))
            case StepDone():
                if event.step % self._log_interval == 0 or event.step == self._last_step:
                    self.note(step_line(event, self._last_step, self._samples))
            case Evaluation():
                self.note(evaluation_line(event))
            case Caution():
                self.note(f"caution: {event.text}")
            case Saved():
                self.note(f"checkpoint {event.manifest}")
            case Ended():
                self.note(f"training ended at step {event.step}: {event.reason}")

    def note(self, line: str) -> None:
        self._out.write(line + "\n")
        self._out.flush()

    def close(self) -> None:
        """Nothing to leave."""


@final
class Live:
    """A panel that stays in place, with whatever else is said scrolling by above it."""

    def __init__(self, console: Console) -> None:
        self._summary = Summary()
        self._phase = "starting"
        self._console = console
        self._live = RichLive(
            get_renderable=self._panel, console=console, refresh_per_second=REFRESH_PER_S
        )
        self._live.start()

    def show(self, event: Event | Evaluation) -> None:
        self._summary.add(event)
        match event:
            case Started():
                self._phase = "training"
                self.note(headline(event))
            case Evaluation():
                self.note(evaluation_line(event))
            case Caution():
                self.note(f"caution: {event.text}")
            case Ended():
                self._phase = f"{event.reason}; the evaluator finishes"

    def note(self, line: str) -> None:
        self._console.print(Text(line))

    def close(self) -> None:
        ended = self._summary.ended
        self._phase = "ended early" if ended is None else ended.reason
        self._live.stop()

    def _panel(self) -> Panel:
        started, step = self._summary.started, self._summary.last
        if started is None or step is None:
            clock = time.strftime("%H:%M:%S")
            return Panel(Text(f"{self._phase} … {clock}"), title="atomo", width=self._width())
        bar = ProgressBar(total=started.last_step, completed=step.step)
        line = Table.grid(expand=True)  # a bar alone does not end its line
        line.add_row(bar)
        body = Group(line, progress_table(step, started), times_table(step))
        latest = self._summary.evaluation
        foot = foot_text(latest) if latest else "not evaluated yet"
        title = f"atomo · {started.network} on {started.dataset} · {started.code} · {self._phase}"
        return Panel(body, title=title, subtitle=foot, width=self._width())

    def _width(self) -> int:
        return max(1, self._console.width - len(ECHO))


def progress_table(step: StepDone, started: Started) -> Table:
    """Where the run is, how well it does, and what it costs on the wire."""
    table = Table.grid(padding=(0, 2), expand=True)
    table.add_row(
        f"step {step.step}/{started.last_step}",
        f"epoch {step.epoch:.2f}",
        f"loss {step.loss:.4f}",
        f"lr {rate_text(step)}",
        f"{step.images_per_s:,.0f} {started.samples}/s",
        f"ETA {duration_text(step.eta_s)}",
    )
    table.add_row(
        f"sent {bytes_text(step.up_bytes)}/step",
        f"dense {bytes_text(step.dense_bytes)}",
        f"{ratio_text(step.dense_bytes, step.up_bytes)} smaller",
        f"{back_text(step)}/step",
        f"{step.workers} of {started.workers} workers",
        f"{1e3 * step.step_s:.0f} ms/step",
    )
    return table


def times_table(step: StepDone) -> Table:
    """Where the time of a step goes."""
    table = Table.grid(padding=(0, 2), expand=True)
    cells = [f"{name} {ms:.1f} ms" for name, ms in phases_ms(step)]
    table.add_row(*cells, *filter(None, [hidden_text(step)]))
    return table


def phases_ms(step: StepDone) -> list[tuple[str, float]]:
    """The parts of a step that took any time, or always would."""
    named = [(name, 1e3 * float(getattr(step, f"{name}_s"))) for name in PHASES]
    return [(name, ms) for name, ms in named if ms or name != "follow"]


def headline(event: Started) -> str:
    begin = "" if event.first_step == 1 else f", continued at step {event.first_step}"
    return (
        f"{event.network} ({event.parameters:,} parameters) on {event.dataset} ({event.images:,} "
        f"{event.samples}), code {event.code}, memory {event.memory}, {processes_text(event)}, "
        f"{event.steps_per_epoch} steps an epoch, {event.last_step} steps{begin}; {event.train_dir}"
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
    """Who takes part."""
    if event.comm_type == PARAMETER_SERVER:
        return f"1 master + {event.workers} workers"
    return f"{event.workers} workers, {event.comm_type}"


def back_text(step: StepDone) -> str:
    """What comes from the master, or from the other ranks."""
    return f"{'received' if step.exchange_s else 'down'} {bytes_text(step.down_bytes)}"


def hidden_text(step: StepDone) -> str:
    """How much of the exchange the backward pass hid, where that is known."""
    return f"hidden {step.hidden_s / step.exchange_s:.0%}" if step.exchange_s else ""


def rate_text(step: StepDone) -> str:
    """The learning rate, and what the noise of the codec makes of it."""
    return f"{step.lr:.4g}" + (f" x {step.damping:.2g}" if step.damping < 1 else "")


def evaluation_line(event: Evaluation) -> str:
    """One line for a checkpoint's test results."""
    task = make_task(event.task)
    told = values_text(task, event, "")
    if any(key.startswith(AVERAGED) for key in event.values):
        told += f"; average {values_text(task, event, AVERAGED)}"
    return f"step {event.step}: test {told} on {event.samples:,} {task.samples}"


def values_text(task: Task, event: Evaluation, prefix: str) -> str:
    """The values of some weights, those whose keys begin so."""
    shown = [one for one in (*task.metrics, LOSS) if prefix + one.key in event.values]
    return " ".join(f"{one.shown} {one.text(event.values[prefix + one.key])}" for one in shown)


def foot_text(event: Evaluation) -> str:
    """The headline of a checkpoint's test results."""
    metric = make_task(event.task).metrics[0]
    return f"test {metric.shown} {metric.text(event.values[metric.key])} at step {event.step}"
