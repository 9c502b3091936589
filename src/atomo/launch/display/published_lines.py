"""A run in the lines that the published ATOMO printed; those of workers come from themselves."""

from typing import Final, final

from atomo.core.visible import visible
from atomo.launch.display.lines import Output, ignore_full_disk
from atomo.training.evaluation.evaluation import Evaluation
from atomo.training.job.events import Caution, Event, Measuring, ProbedAgain, StepDone, Storage

__all__ = ["PublishedLines", "published_evaluation"]

NOTHING: Final = float("nan")  # of a task that has no such metric


@final
class PublishedLines:
    """`Master: Step: ...` and `Test set: Step: ...`; other words as they are."""

    def __init__(self, out: Output) -> None:
        self._out = out

    def show(self, event: Event | Evaluation) -> None:
        match event:
            case StepDone():
                self.note(master_line(event))
            case Evaluation():
                self.note(published_evaluation(event))
            case Caution():
                self.note(f"caution: {event.text}")
            case Measuring() | ProbedAgain():
                self.note(event.text)
            case Storage():
                self.note(f"storage: {event.text}")

    def note(self, line: str) -> None:
        with ignore_full_disk():
            self._out.write(visible(line) + "\n")
            self._out.flush()

    def close(self) -> None:
        """Closes nothing: there is nothing to leave."""


def master_line(event: StepDone) -> str:
    gather_s = max(0.0, event.step_s - event.decode_s - event.update_s)
    return (
        f"Master: Step: {event.step}, Decode Cost: {event.decode_s}, Cur lr {event.lr}, "
        f"Gather: {gather_s}"
    )


def published_evaluation(event: Evaluation) -> str:
    """Returns a checkpoint's test results, top-1 and top-5 in percent."""
    top1, top5 = (100 * event.values.get(key, NOTHING) for key in ("top1", "top5"))
    loss = event.values.get("loss", NOTHING)
    return f"Test set: Step: {event.step}, Average loss: {loss:.4f}, Prec@1: {top1} Prec@5: {top5}"
