"""evaluations.jsonl: the results of evaluators, of which one at a time may append."""

import math
from pathlib import Path
from typing import final

from atomo.errors import CheckpointError
from atomo.training.evaluation.evaluation import Evaluation
from atomo.training.folder.ownership import EVALUATOR, FolderTaken, Ownership, own
from atomo.training.folder.run_folder import Wait
from atomo.training.records.json_lines import append_line, lines
from atomo.workloads import make_task

__all__ = ["EVALUATIONS", "EvaluationLog"]

EVALUATIONS = "evaluations.jsonl"
RETRY_S = 1.0


@final
class EvaluationLog:
    """The results of one run, in a `with` block. This process locks them when the folder exists.

    Args:
        folder: of the run.
        patience_s: the longest wait until NFS shows a file.
        predecessor_s: the longest wait for the end of another evaluator.
        wait: sleeps for a number of seconds.
    """

    def __init__(self, folder: Path, patience_s: float, predecessor_s: float, wait: Wait) -> None:
        self.added = 0
        self._folder, self._path = folder, folder / EVALUATIONS
        self._patience_s, self._predecessor_s, self._wait = patience_s, predecessor_s, wait
        self._owner: Ownership | None = None
        self._done: set[int] = set()

    def __enter__(self) -> "EvaluationLog":
        return self

    def __exit__(self, *error: object) -> None:
        if self._owner is not None:
            self._owner.__exit__(*error)

    def done(self) -> set[int]:
        """Returns the steps that have results.

        Raises:
            FolderTaken: another evaluator writes the log.
            CheckpointError: the log cannot be read, or has a line that is no result.
        """
        if self._owner is None and self._folder.is_dir():
            self._owner = self._own()
            self._done = evaluated(self._path, self._patience_s, self._wait)
        return self._done

    def check(self) -> None:
        """Raises FolderTaken if another process took over the log."""
        if self._owner is not None:
            self._owner.check()

    def add(self, evaluation: Evaluation) -> None:
        """Appends a result, and syncs the file."""
        append_line(self._path, record(evaluation))
        self._done.add(evaluation.step)
        self.added += 1

    def _own(self) -> Ownership:
        waited_s = 0.0
        while True:
            try:
                return own(self._folder, EVALUATOR, patience_s=self._patience_s, wait=self._wait)
            except FolderTaken:
                if waited_s >= self._predecessor_s:
                    raise
            self._wait(RETRY_S)
            waited_s += RETRY_S


def record(evaluation: Evaluation) -> dict[str, object]:
    """Returns the line of a result. JSON has no NaN and no infinity: they become null."""
    values = {key: v if math.isfinite(v) else None for key, v in evaluation.values.items()}
    samples = make_task(evaluation.task).samples
    return {"step": evaluation.step, **values, samples: evaluation.samples}


def evaluated(log: Path, patience_s: float, wait: Wait) -> set[int]:
    """Returns the steps with a result in `log`."""
    steps: set[int] = set()
    for number, line in enumerate(lines(log, patience_s, wait), 1):
        match line:
            case {"step": int(step)}:
                steps.add(step)
            case _:
                raise CheckpointError(f"{log}, line {number}: not an evaluation; remove it")
    return steps
