"""Display on a terminal: a live panel, with lines above the panel."""

import time
from typing import final

from rich.console import Console, Group
from rich.live import Live as RichLive
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from atomo.core.number_text import bytes_text, duration_text, ratio_text
from atomo.core.visible import visible
from atomo.launch.display.lines import (
    back_text,
    evaluation_line,
    foot_text,
    headline,
    hidden_text,
    phases_ms,
    rate_text,
)
from atomo.launch.display.summary import STRAGGLES, Summary
from atomo.training.evaluation.evaluation import Evaluation
from atomo.training.job.events import (
    Caution,
    Ended,
    Event,
    Measuring,
    ProbedAgain,
    Started,
    StepDone,
    Storage,
)

__all__ = ["LivePanel"]

REFRESH_PER_S = 5
ECHO = "^C^C"  # room for the terminal's echo of Ctrl-C: a wrapped line would displace the panel


@final
class LivePanel:
    """A panel at the bottom of the terminal; other lines scroll above the panel."""

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
                if event.chosen:
                    self.note(event.chosen)
                if event.fusion:
                    self.note(event.fusion)
                if event.rounds:
                    self.note(event.rounds)
            case Evaluation():
                self.note(evaluation_line(event))
            case Caution():
                self.note(f"caution: {event.text}")
            case Storage():
                self.note(f"storage: {event.text}")
            case Measuring() | ProbedAgain():
                self.note(event.text)
            case Ended():
                self._phase = f"{event.reason}; the evaluator finishes"

    def note(self, line: str) -> None:
        self._console.print(Text(visible(line)))

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
        line = Table.grid(expand=True)  # a bar without a table does not end its line
        line.add_row(bar)
        body = Group(line, progress_table(step, started), times_table(step))
        latest = self._summary.evaluation
        foot = foot_text(latest) if latest else "not evaluated yet"
        title = f"atomo · {started.network} on {started.dataset} · {started.code} · {self._phase}"
        return Panel(body, title=Text(visible(title)), subtitle=Text(foot), width=self._width())

    def _width(self) -> int:
        return max(1, self._console.width - len(ECHO))


def progress_table(step: StepDone, started: Started) -> Table:
    """Renders the progress: step, loss, speed and bytes."""
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
        workers_text(step, started),
        f"{1e3 * step.step_s:.0f} ms/step",
    )
    return table


def workers_text(step: StepDone, started: Started) -> str:
    """Returns the number of used gradients, and the slowest worker if that worker lags."""
    lags = f", {step.slowest} is {step.slowness:.1f}x slow" if step.slowness >= STRAGGLES else ""
    return f"{step.workers} of {started.workers} workers{lags}"


def times_table(step: StepDone) -> Table:
    """Renders the parts of a step's time."""
    table = Table.grid(padding=(0, 2), expand=True)
    cells = [f"{name} {ms:.1f} ms" for name, ms in phases_ms(step)]
    table.add_row(*cells, *filter(None, [hidden_text(step)]))
    return table
