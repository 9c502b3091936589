"""The evaluator: follows a run folder, and scores each checkpoint on the test split, once.

It shares nothing with the training but the folder, so it may run on another machine, start before
the training or long after, and be killed at any moment. `evaluations.jsonl` in that folder is its
memory: what is in there is never evaluated again. TensorBoard's files in `tensorboard/` repeat it.
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
    """The run folder. It need not exist yet."""
    network: str | None
    dataset: str | None
    data_dir: Path
    eval_batch_size: int = 1000
    """Samples a forward pass: more => faster, until memory is full."""
    eval_freq: int = 0
    """Evaluate the steps that are multiples of this, and the last one; 0: every checkpoint."""
    poll_interval_s: float = 1.0
    follow: bool = False
    """Go on after the run is finished, in case it is continued."""
    idle_timeout_s: float = 0.0
    """Stop after so long with nothing to evaluate; 0: wait for ever."""
    device: str = "cpu"
    image_size: int | None = None
    """Pixels a side, where the data set comes in several sizes."""
    patience_s: float = PATIENCE_S
    """Seconds for which a checkpoint may be unreadable before it counts as damaged."""
    predecessor_s: float = 0.0
    """Longest wait for another evaluator of this run that is ending, seconds."""

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
    why: str = "deleted before its turn came"


def evaluate(
    settings: EvaluatorSettings,
    report: Callable[[Evaluation | Missed], None],
    *,
    wait: Wait = time.sleep,
) -> int:
    """Evaluates every checkpoint that is due, in the order of steps, as they appear.

    Returns once the run is finished and nothing is left to do, or nothing came for too long.

    Args:
        settings: what to evaluate, and how.
        report: called with each result after it is on the disk, and with each checkpoint missed.
        wait: sleeps that many seconds.

    Returns:
        The number of checkpoints that this call evaluated.

    Raises:
        ConfigError: the settings contradict a checkpoint, or neither names the network.
        CheckpointError: a result cannot be written.
        FolderTaken: another evaluator writes the results of this run.
        DataError: the data set is not there.
    """
    # The data set and the network are those of the first checkpoint, and hardly ever others later.
    build = lru_cache(maxsize=1)(build_subject)
    s = settings
    log = EvaluationLog(s.model_dir, s.patience_s, s.predecessor_s, wait)
    with log, TensorBoardWriter(s.model_dir / TENSORBOARD) as board:
        for found in snapshots(settings, log, wait):
            if isinstance(found, Missed):
                report(found)
                continue
            network, dataset, size = (
                agreed(name, getattr(settings, name), found.config)
                for name in ("network", "dataset", "image_size")
            )
            task = restore_task(
                make_task(str(found.config.get("task", UNSAID["task"]))), found.config
            )
            refuse_foreign(network, settings.network)
            subject = build(task, network, dataset, size, settings.data_dir, settings.device)
            evaluation = score(found, subject, settings.eval_batch_size)
            log.check()  # before anything is written: scoring took long enough to lose the folder
            # The log is last: a result that it has is in TensorBoard too, whenever this is killed.
            board.add(evaluation)
            log.add(evaluation)
            report(evaluation)
        return log.added


def refuse_foreign(network: object, given: str | None) -> None:
    """Raises ConfigError where a checkpoint alone would have us import a module."""
    if given is None and isinstance(network, str) and is_own(network):
        raise ConfigError(
            f"this was trained with {network!r}, a module to be imported, which is not "
            f"done because a file says so; if you trust it, give --network {network}"
        )


def snapshots(
    settings: EvaluatorSettings, log: EvaluationLog, wait: Wait
) -> Iterator[Snapshot | Missed]:
    """Returns the checkpoints that are due and not in the log, to which the caller adds."""
    awaited: set[int] = set()  # due when last looked at: those that are gone now were missed
    missed: set[int] = set()  # and told so
    view, idle_s = View(settings.model_dir, settings.patience_s, wait), 0.0
    while True:
        done = log.done()
        seen = view.now()
        over, there = seen or (None, awaited)  # nothing is known: so nothing is missed
        yield from map(Missed, sorted(awaited - there - done - missed))
        missed &= there  # a listing may still show what is gone, and the run may write it anew
        awaited = due = due_steps(there, missed, over, settings.eval_freq) - done - missed
        if due and seen:
            idle_s = 0.0
            found = read(settings, min(due), wait)  # one, then a fresh look: reading takes time
            missed |= {found.step} if isinstance(found, Missed) else set()
            yield found
        elif ends(settings, over, there, idle_s):
            return
        else:
            wait(settings.poll_interval_s)
            idle_s += settings.poll_interval_s


@final
class View:
    """The content of a run folder while it can be read; a person is told when it cannot."""

    def __init__(self, folder: Path, patience_s: float, wait: Wait) -> None:
        self._folder, self._patience_s, self._wait = folder, patience_s, wait
        self._away = False

    def now(self) -> tuple[Finished | None, set[int]] | None:
        """Returns the mark of a run that is over, and the steps of the checkpoints;
        None: unknown.
        """
        try:
            found = self._look()
        except CheckpointError as error:
            if not self._away:
                warn(f"{error}; it is looked for again")
            self._away = True
            return None
        if self._away:
            warn(f"{self._folder} can be read again")
        self._away = False
        return found

    def _look(self) -> tuple[Finished | None, set[int]]:
        # The mark is read first: what the run wrote before it is then in the listing.
        over = finished(self._folder, patience_s=self._patience_s, wait=self._wait)
        return over, set(steps(self._folder, patience_s=self._patience_s, wait=self._wait))


def warn(text: str) -> None:
    """Tells a person."""
    with suppress(OSError):
        sys.stderr.write(f"storage: {visible(text)}\n")


def due_steps(there: set[int], missed: set[int], over: Finished | None, eval_freq: int) -> set[int]:
    """Returns the checkpoints that are to be evaluated, done or not. The last of a run that is over
    is one of them: the last that can be read, of no step that the run has not come to.
    """
    if not eval_freq:
        return there
    due = {step for step in there if step % eval_freq == 0}
    if over:
        due |= {max((step for step in there - missed if step <= over.step), default=over.step)}
    return due & there


def ends(
    settings: EvaluatorSettings, over: Finished | None, there: set[int], idle_s: float
) -> bool:
    """True if an evaluator with nothing due stops waiting."""
    if settings.idle_timeout_s and idle_s >= settings.idle_timeout_s:
        return True
    if over is None or settings.follow:
        return False
    # A listing that NFS remembers may not show the last checkpoint yet.
    return over.step in there or idle_s >= settings.patience_s


def read(settings: EvaluatorSettings, step: int, wait: Wait) -> Snapshot | Missed:
    """Returns one checkpoint's model, and its averaged weights if any, as soon as it is whole;
    missed, if it is still not whole after `patience_s`.
    """
    folder, waited_s = settings.model_dir, 0.0
    while True:
        try:
            found = load(folder, step, parts=["model"], patience_s=0.0, wait=wait)
            if not found.config.get("ema_decay"):
                return found
            # The optimiser's part has the average of the weights.
            return load(folder, step, parts=["model", "optimizer"], patience_s=0.0, wait=wait)
        except CheckpointGone:
            return Missed(step)
        except CheckpointError as error:  # NFS may show a manifest before the files that it lists
            if waited_s >= settings.patience_s:
                return Missed(step, str(error))
        wait(settings.poll_interval_s)
        waited_s += settings.poll_interval_s
