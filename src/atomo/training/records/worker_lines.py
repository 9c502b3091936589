"""Lines about each worker's step in the format of the published ATOMO, for its parsers.

    Worker: 1, Step: 7, Epoch: 0 [384/1437 (27%)], Loss: 0.5123, Time Cost: 0.0412, ...

Wang et al., "ATOMO", NeurIPS 2018; `distributed_worker.py` of their published code.
"""

import os
from collections.abc import Callable, Mapping
from typing import Final, final

from atomo.exchange import Report
from atomo.training.job.job import Job

__all__ = ["WorkerLines", "say_line"]

MEGABYTE: Final = 1024.0**2
NOTHING: Final = float("nan")  # for a task without the metric


def say_line(line: str) -> None:
    """Prints a line in one write, so that the lines of several ranks never mix."""
    os.write(1, f"{line}\n".encode())


@final
class WorkerLines:
    """The lines of one worker's steps, if the settings ask for them."""

    def __init__(self, job: Job, worker: int, say: Callable[[str], None] = say_line) -> None:
        self._job, self._worker, self._say = job, worker, say
        self.wanted = job.settings.log_format == "atomo"

    def tell(
        self, step: int, report: Report, metrics: Mapping[str, float], step_s: float, sent: int
    ) -> None:
        """Prints the line of a step.

        Args:
            step: number of the step.
            report: of the worker.
            metrics: of the batch, as fractions.
            step_s: seconds of the step.
            sent: bytes.
        """
        if self.wanted:
            line = f"Worker: {self._worker}, Step: {step}, {self._place(step)}, "
            line += f"Loss: {report.loss:.4f}, Time Cost: {step_s:.4f}, "
            line += f"Comp: {report.compute_s:.4f}, Encode: {report.encode_s: .4f}, "
            line += f"Comm: {report.send_s: .4f}, Msg(MB): {sent / MEGABYTE: .4f}, "
            self._say(line + precision(metrics))

    def _place(self, step: int) -> str:
        """Returns the place of a step in its epoch; epochs count from 0."""
        job, images = self._job, len(self._job.workload.train)
        epoch, done = divmod(step - 1, job.steps_per_epoch)
        seen = done * job.settings.share_of_step * job.workers
        return f"Epoch: {epoch} [{seen}/{images} ({100.0 * seen / images:.0f}%)]"


def precision(metrics: Mapping[str, float]) -> str:
    """Formats two metrics in percent."""
    top1, top5 = (100 * metrics.get(key, NOTHING) for key in ("top1", "top5"))
    return f"Prec@1: {top1: .4f}, Prec@5: {top5: .4f}"
