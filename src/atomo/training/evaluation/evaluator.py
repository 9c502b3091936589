"""The evaluator: follows a run folder, and scores each checkpoint on the test split, once.

The evaluator and the training share only the folder: the evaluator may run on another machine,
start before the training or long after, and be killed at any moment. Steps in `evaluations.jsonl`
are never evaluated again. TensorBoard's files in `tensorboard/` repeat the results.
"""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, final

import torch

from atomo.config.identity import UNSAID
from atomo.core.bounds import ANY, IMAGES, PIXELS, SECONDS, Bound, check
from atomo.core.visible import visible
from atomo.errors import CheckpointError, ConfigError
from atomo.training.checkpoints.checkpoint import (
    CheckpointGone,
    Finished,
    Snapshot,
    finished,
    load,
    steps,
)
from atomo.training.evaluation.best_checkpoint import BestCheckpoint
from atomo.training.evaluation.evaluation_log import EVALUATIONS, EvaluationLog
from atomo.training.evaluation.scoring import Evaluation, agreed, build_subject, score
from atomo.training.evaluation.tensorboard_writer import TENSORBOARD, TensorBoardWriter
from atomo.training.folder.run_folder import PATIENCE_S, Wait
from atomo.workloads import make_task, restore_task
from atomo.workloads.models import is_own

__all__ = ["EVALUATIONS", "Evaluation", "EvaluatorSettings", "Missed", "evaluate"]

BOUNDS: Final[Mapping[str, Bound]] = {
    "image_size": PIXELS,
    "eval_batch_size": IMAGES,
    "eval_freq": ANY,
    "poll_interval_s": SECONDS,
    "idle_timeout_s": ANY,
    "patience_s": ANY,
    "predecessor_s": ANY,
}


@dataclass(frozen=True)
class EvaluatorSettings:
    """Settings of an evaluator. A setting that is None comes from the checkpoint."""

    model_dir: Path
    """The run folder, which need not exist yet."""
    network: str | None
    dataset: str | None
    data_dir: Path
    eval_batch_size: int = 1000
    """Samples a forward pass: more => faster, until memory is full."""
    eval_freq: int = 0
    """Evaluate the steps that are multiples of this, and the last one; 0: every checkpoint."""
    poll_interval_s: float = 1.0
    follow: bool = False
    """Continue after the run is finished, in case the run is resumed."""
    idle_timeout_s: float = 0.0
    """Stop after this many seconds with nothing to evaluate; 0: never."""
    device: str = "cpu"
    image_size: int | None = None
    """Pixels a side, for data sets that have several sizes."""
    patience_s: float = PATIENCE_S
    """Seconds for which a checkpoint may be unreadable before it counts as damaged."""
    predecessor_s: float = 0.0
    """Longest wait for another evaluator of this run that is ending, seconds."""
    keep_best: bool = False
    """Keep a copy of the best checkpoint in `best/`."""

    def __post_init__(self) -> None:
        check(self, BOUNDS, str)
        try:
            torch.empty(0, device=self.device)
        except (RuntimeError, AssertionError) as error:
            raise ConfigError(f"cannot use device {self.device!r}: {error}") from error


@dataclass(frozen=True)
class Missed:
    """A checkpoint that is not evaluated."""

    step: int
    why: str = "deleted before it was evaluated"


def evaluate(
    settings: EvaluatorSettings,
    report: Callable[[Evaluation | Missed], None],
    *,
    wait: Wait = time.sleep,
) -> int:
    """Evaluates every checkpoint that is due, in the order of steps, as they appear.

    Returns when the run is finished and all its checkpoints are evaluated, or after the idle
    timeout.

    Args:
        settings: of the evaluator.
        report: receives each result after it is on the disk, and each missed checkpoint.
        wait: sleeps for a number of seconds.

    Returns:
        The number of checkpoints that this call evaluated.

    Raises:
        ConfigError: the settings contradict a checkpoint, or neither names the network.
        CheckpointError: a result cannot be written.
        FolderTaken: another evaluator writes the results of this run.
        DataError: the data set is missing.
    """
    # Later checkpoints nearly always have the data set and the network of the first.
    build = lru_cache(maxsize=1)(build_subject)
    s = settings
    log = EvaluationLog(s.model_dir, s.patience_s, s.predecessor_s, wait)
    best = BestCheckpoint(s.model_dir) if s.keep_best else None
    with log, TensorBoardWriter(s.model_dir / TENSORBOARD) as board:
        for snapshot in snapshots(settings, log, wait):
            if isinstance(snapshot, Missed):
                report(snapshot)
                continue
            network, dataset, size = (
                agreed(name, getattr(settings, name), snapshot.config)
                for name in ("network", "dataset", "image_size")
            )
            task = restore_task(
                make_task(str(snapshot.config.get("task", UNSAID["task"]))), snapshot.config
            )
            refuse_foreign(network, settings.network)
            subject = build(task, network, dataset, size, settings.data_dir, settings.device)
            evaluation = score(snapshot, subject, settings.eval_batch_size)
            log.check()  # before writing: scoring may take long enough to lose the lock
            # The log is last: what it has is in TensorBoard and in `best/`, too, even after a kill.
            if best is not None:
                best.offer(evaluation, snapshot)
            board.add(evaluation)
            log.add(evaluation)
            report(evaluation)
        return log.added


def refuse_foreign(network: object, setting: str | None) -> None:
    """Raises ConfigError if only the checkpoint, and not the user, names a module to import."""
    if setting is None and isinstance(network, str) and is_own(network):
        raise ConfigError(
            f"this was trained with {network!r}, a module to be imported; a file alone cannot ask "
            f"for that; if you trust it, give --network {network}"
        )


def snapshots(
    settings: EvaluatorSettings, log: EvaluationLog, wait: Wait
) -> Iterator[Snapshot | Missed]:
    """Yields the checkpoints that are due and not in the log, to which the caller appends."""
    awaited: set[int] = set()  # due in the last listing; those that are missing now were missed
    missed: set[int] = set()  # and reported
    view, idle_s = View(settings.model_dir, settings.patience_s, wait), 0.0
    while True:
        done = log.done()
        seen = view.now()
        marker, existing = seen or (None, awaited)  # unreadable folder: nothing counts as missed
        yield from map(Missed, sorted(awaited - existing - done - missed))
        missed &= existing  # a listing may be stale, and the run may write a checkpoint again
        awaited = due = due_steps(existing, missed, marker, settings.eval_freq) - done - missed
        if due and seen:
            idle_s = 0.0
            snapshot = read(settings, min(due), wait)  # one, then a new listing: scoring takes time
            missed |= {snapshot.step} if isinstance(snapshot, Missed) else set()
            yield snapshot
        elif ends(settings, marker, existing, idle_s):
            return
        else:
            wait(settings.poll_interval_s)
            idle_s += settings.poll_interval_s


@final
class View:
    """The content of a run folder while it can be read; an unreadable folder is reported."""

    def __init__(self, folder: Path, patience_s: float, wait: Wait) -> None:
        self._folder, self._patience_s, self._wait = folder, patience_s, wait
        self._away = False

    def now(self) -> tuple[Finished | None, set[int]] | None:
        """Returns the marker of a finished run, if any, and the steps of the checkpoints; None if
        the folder cannot be read.
        """
        try:
            content = self._look()
        except CheckpointError as error:
            if not self._away:
                warn(f"{error}; the evaluator tries again")
            self._away = True
            return None
        if self._away:
            warn(f"{self._folder} can be read again")
        self._away = False
        return content

    def _look(self) -> tuple[Finished | None, set[int]]:
        # The marker is read first: the listing then has all that the run wrote before the marker.
        marker = finished(self._folder, patience_s=self._patience_s, wait=self._wait)
        return marker, set(steps(self._folder, patience_s=self._patience_s, wait=self._wait))


def warn(text: str) -> None:
    """Prints a message about storage to stderr."""
    with suppress(OSError):
        sys.stderr.write(f"storage: {visible(text)}\n")


def due_steps(
    existing: set[int], missed: set[int], marker: Finished | None, eval_freq: int
) -> set[int]:
    """Returns the checkpoints to evaluate, done or not.

    They include the last readable checkpoint of a finished run, up to the step in its marker.
    """
    if not eval_freq:
        return existing
    due = {step for step in existing if step % eval_freq == 0}
    if marker:
        due |= {
            max((step for step in existing - missed if step <= marker.step), default=marker.step)
        }
    return due & existing


def ends(
    settings: EvaluatorSettings, marker: Finished | None, existing: set[int], idle_s: float
) -> bool:
    """Returns True if an evaluator with nothing due stops waiting."""
    if settings.idle_timeout_s and idle_s >= settings.idle_timeout_s:
        return True
    if marker is None or settings.follow:
        return False
    # A listing in the cache of NFS may not show the last checkpoint yet.
    return marker.step in existing or idle_s >= settings.patience_s


def read(settings: EvaluatorSettings, step: int, wait: Wait) -> Snapshot | Missed:
    """Returns a checkpoint's model, with its averaged weights if any, as soon as all its files can
    be read; `Missed` if they cannot be read within `patience_s`.
    """
    folder, waited_s = settings.model_dir, 0.0
    while True:
        try:
            snapshot = load(folder, step, parts=["model"], patience_s=0.0, wait=wait)
            if not snapshot.config.get("ema_decay"):
                return snapshot
            # The optimizer's part has the average of the weights.
            return load(folder, step, parts=["model", "optimizer"], patience_s=0.0, wait=wait)
        except CheckpointGone:
            return Missed(step)
        except CheckpointError as error:  # NFS may show a manifest before the files that it lists
            if waited_s >= settings.patience_s:
                return Missed(step, str(error))
        wait(settings.poll_interval_s)
        waited_s += settings.poll_interval_s
