"""A copy of the best checkpoint in `best/`, for runs that delete their old checkpoints.

`best/` is a run folder with one complete checkpoint: it can be evaluated and continued from.
"""

import math
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, final

from atomo.training.checkpoints.checkpoint import CheckpointGone, Snapshot, load, steps, write
from atomo.training.checkpoints.data_files import verify
from atomo.training.checkpoints.pruning import delete
from atomo.training.evaluation.evaluation import AVERAGED, Evaluation
from atomo.training.evaluation.evaluation_log import EVALUATIONS
from atomo.training.records.json_lines import lines
from atomo.workloads import make_task
from atomo.workloads.base import Metric

__all__ = ["BEST", "BestCheckpoint"]

BEST: Final = "best"


@final
class BestCheckpoint:
    """The checkpoint with the best headline metric of a run's evaluations.

    Args:
        folder: of the run.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._value: float | None = None
        """The metric of the copy; None: not read yet; NaN: there is no copy."""

    def offer(self, evaluation: Evaluation, snapshot: Snapshot) -> bool:
        """Replaces the copy if this checkpoint is better, and returns True if so.

        Only the evaluated part is copied if the run has deleted the checkpoint since.

        Raises:
            CheckpointError: the copy cannot be written; the previous copy is intact.
        """
        metric = make_task(evaluation.task).metrics[0]
        if self._value is None:
            self._value = self._value_of_copy(metric)
        value = best_value(evaluation.values, metric)
        if not metric.better(value, self._value):
            return False
        with suppress(CheckpointGone):
            snapshot = load(self._folder, snapshot.step, patience_s=0.0)
        copy = self._folder / BEST
        write(copy, snapshot)
        verify(copy, snapshot.step)
        for step in steps(copy, patience_s=0.0):
            if step != snapshot.step:
                delete(copy, step)
        self._value = value
        return True

    def _value_of_copy(self, metric: Metric) -> float:
        """Returns the metric of the copy of an earlier evaluator, from evaluations.jsonl."""
        kept = steps(self._folder / BEST, patience_s=0.0)
        records = lines(self._folder / EVALUATIONS, patience_s=0.0)
        values = [best_value(record, metric) for record in records if record["step"] in kept]
        return values[-1] if values else math.nan


def best_value(values: Mapping[str, object], metric: Metric) -> float:
    """Returns a metric of the weights or of their average, whichever is better."""
    best = math.nan
    for key in (metric.key, AVERAGED + metric.key):
        value = values.get(key)
        if isinstance(value, int | float) and metric.better(value, best):
            best = float(value)
    return best
