"""The recorder of a run on rank 0: writes the folder of the run, and reports events."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, final

from torch import Tensor

from atomo.config.identity import record
from atomo.config.resolve_codec import AUTO_CODEC, codecs_text
from atomo.errors import CheckpointError
from atomo.exchange import GradientCounts
from atomo.memory import kind_of
from atomo.options.outer import rounds_text
from atomo.training.checkpoints.checkpoint import Snapshot, finish, prune, sweep, unfinish, write
from atomo.training.checkpoints.manifest import manifest_name
from atomo.training.checkpoints.resume import find_snapshot, mean, snapshot_of
from atomo.training.checkpoints.schema import BUFFER, check_kept, check_worker, kept_buffers
from atomo.training.folder.kept_settings import keep_settings
from atomo.training.folder.ownership import RUN, Ownership, own
from atomo.training.folder.run_folder import probe
from atomo.training.job.events import DRIFTED, Caution, Ended, Event, Saved, Started, StepDone
from atomo.training.job.job import Job
from atomo.training.records.causes import at_start, likely
from atomo.training.records.divergence_monitor import DivergenceMonitor
from atomo.training.records.layer_records import keep_layers
from atomo.training.records.metrics import MetricsLog
from atomo.training.records.plan_records import keep_plan
from atomo.training.records.retrying_writer import RetryingWriter

__all__ = ["Parts", "RunRecorder", "owned"]

NONE: Final = GradientCounts(asked=0, used=0, late=0, lost=0, under_way=0)


@contextmanager
def owned(folder: Path) -> Iterator[Ownership]:
    """Owns the folder of a run while the block runs; creates the folder if it does not exist.

    Raises:
        CheckpointError: the folder cannot be created.
        FolderTaken: another run owns the folder.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"--train-dir {folder}: {error.strerror}") from error
    with own(folder, RUN) as owner:
        sweep(folder)
        yield owner


PATIENCE_S: Final = 60.0  # for the last writes; at most a third of --timeout


@final
@dataclass(frozen=True)
class Parts:
    """The parts of a checkpoint."""

    model: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    workers: Sequence[Mapping[str, Tensor]]
    has_buffers: bool = False
    """True if the floating-point buffers in `model` are averaged already, as those of an anchor."""


@final
class RunRecorder:
    """Recorder of a run: its folder and its events.

    After the first step, a failed write does not end the run: a checkpoint is tried again after a
    later step, with the state of that step.
    """

    def __init__(
        self, job: Job, tell: Callable[[Event], None], owner: Ownership | None = None
    ) -> None:
        """Creates a recorder.

        Args:
            job: the training run.
            tell: receives the events.
            owner: the right to the folder, if this process has it already.
        """
        self._job, self._tell, self._owner = job, tell, owner
        self._folder = Path(job.settings.train_dir)
        self._caution = next(at_start(job.settings), "")  # only the worst
        self._monitor = DivergenceMonitor()
        self._checkpoints = RetryingWriter("checkpoints", tell)
        self._metrics, self._old = (
            RetryingWriter("metrics", tell),
            RetryingWriter("deletions", tell),
        )
        self._records = RetryingWriter("records of the run", tell)
        self._needed = 0  # bytes of a checkpoint
        self._patience_s = min(PATIENCE_S, job.settings.timeout / 3)  # other ranks wait --timeout

    @property
    def failures(self) -> int:
        """Attempts to write that failed so far."""
        writers = self._checkpoints, self._metrics, self._old, self._records
        return sum(writer.failures for writer in writers)

    @contextmanager
    def owning(self) -> Iterator[Ownership]:
        """Owns the folder while the block runs."""
        if self._owner is not None:
            yield self._owner
            return
        with owned(self._folder) as owner:
            self._owner = owner
            yield owner
            self._owner = None

    def snapshot(self) -> Snapshot | None:
        """Returns the checkpoint that the run continues from; None for a new run.

        Raises:
            CheckpointError: the checkpoint cannot be read, or is of another run.
            ConfigError: the settings of the checkpoint contradict this run.
        """
        snapshot = self._find_snapshot()
        if snapshot:
            check_kept(self._job.workload.stored_fields, snapshot.config)
        for state in snapshot.workers if snapshot else ():
            check_worker(state, self._job.model, kind_of(self._job.settings.memory))
        return snapshot

    def _find_snapshot(self) -> Snapshot | None:
        again = self._job.again
        if again is None:
            planned = self._job.plan.codecs is not None
            return find_snapshot(
                self._job.settings, lambda why: self._tell(Caution(why)), planned=planned
            )
        # The folder may have later checkpoints of an earlier run.
        return snapshot_of(self._job.settings, self._folder, again.step - 1)

    @contextmanager
    def logging(self, step: int) -> Iterator[Callable[[StepDone], None]]:
        """Yields a function that records the steps after `step`, while the block runs."""
        if self._job.again:  # after the first step a failed write does not end the run
            self._records.attempt(self._record)
        else:
            self._record()
        with self._log(step) as log:
            self._begin(step + 1)

            def done(event: StepDone) -> None:
                event = replace(event, storage_failures=self.failures)
                log.write(event)
                self._tell(event)
                if self._monitor.alarms(event.loss):
                    why = "" if self._caution else f"; {likely(self._job.settings)}"
                    self._tell(Caution(f"{self._monitor}{why}"))

            yield done

    def _log(self, step: int) -> MetricsLog:
        return MetricsLog(self._folder, step + 1, self._metrics, self._patience_s)

    def _record(self) -> None:
        """Writes the settings and the plan of the run."""
        unfinish(self._folder)  # only now: a refused resume must not change the folder
        keep_settings(self._folder, self._job.settings)
        keep_plan(self._folder, self._job.plan)
        with suppress(CheckpointError):  # for readers alone: no reason to end a run
            keep_layers(self._folder, self._job)

    @property
    def tries_again(self) -> bool:
        """True if the last checkpoint failed, and another attempt is due."""
        return self._checkpoints.due

    def save(self, step: int, parts: Callable[[], Parts]) -> bool:
        """Writes a checkpoint, if possible; returns True on success.

        Args:
            step: the last finished step.
            parts: returns the content, and is called only if the folder can be written. The
                buffers of the model become the mean of the workers' buffers, unless they are
                averaged.

        Raises:
            FolderTaken: another run has the folder.
        """
        written = self._checkpoints.attempt(lambda: self._write(step, parts))
        if written:
            self._prune(step)
        return written

    def save_last(self, step: int, parts: Parts) -> None:
        """Writes the last checkpoint of the run.

        Raises:
            CheckpointError: all attempts of a minute failed.
        """
        self._checkpoints.insist(
            lambda: self._write(step, lambda: parts), self._patience_s, time.sleep
        )
        self._prune(step)

    def can_save(self, step: int) -> bool:
        """Returns True if a checkpoint of `step` can probably be written now."""
        return self._checkpoints.works and self._checkpoints.attempt(partial(self._probe, step))

    def _write(self, step: int, parts: Callable[[], Parts]) -> None:
        if self._checkpoints.works:
            self._check()
        else:  # before the costly collection of states
            self._probe(step)
        content = parts()
        buffers, states = list(kept_buffers(self._job.model)), content.workers
        means = {n: mean([state[BUFFER + n] for state in states], len(states)) for n in buffers}
        if content.has_buffers:  # but for counts
            means = {n: tensor for n, tensor in means.items() if not tensor.is_floating_point()}
        config = {**record(self._job.settings), **self._job.workload.stored_fields}
        model = {**content.model, **means}
        tensors = (model, content.optimizer, *states)
        self._needed = sum(tensor.nbytes for part in tensors for tensor in part.values())
        snapshot = Snapshot(step, model, content.optimizer, tuple(states), config)
        manifest = write(self._folder, snapshot)
        self._tell(Saved(step, str(manifest)))

    def _probe(self, step: int) -> None:
        self._check()
        probe(self._folder / manifest_name(step), self._needed)

    def _check(self) -> None:
        if self._owner is not None:
            self._owner.check()

    def _prune(self, step: int) -> None:
        """Deletes old checkpoints, if possible."""
        if keep := self._job.settings.keep_checkpoints:
            self._old.attempt(lambda: prune(self._folder, step, keep))

    def end(
        self,
        step: int,
        reason: str,
        gradients: GradientCounts = NONE,
        images: GradientCounts = NONE,
    ) -> None:
        """Marks the run as finished, unless it only pauses.

        Args:
            step: the last step.
            reason: of the end.
            gradients: the counts of gradients that were still under way, and counted in no step.
            images: the counts of their images.

        Raises:
            CheckpointError: all attempts of a minute to write the marker failed.
        """
        if reason == DRIFTED:
            return
        mark = partial(finish, self._folder, step, reason)
        self._records.insist(mark, self._patience_s, time.sleep)
        counts = gradients.late, gradients.lost, images.late, images.lost
        refused = gradients.refused, images.refused
        self._tell(Ended(step, reason, *counts, *refused))

    def _begin(self, first_step: int) -> None:
        """Reports the start of the run, or the result of a probe during the run."""
        if self._job.again:
            self._tell(self._job.again)
            return
        self._tell(self._started(first_step))
        if self._caution:
            self._tell(Caution(self._caution))

    def _started(self, first_step: int) -> Started:
        job, s, plan = self._job, self._job.settings, self._job.plan
        return Started(
            network=s.network,
            dataset=s.dataset,
            code=AUTO_CODEC if plan.codecs else codecs_text(s.code, s.code_schedule, s.code_for),
            memory=s.memory,
            workers=job.workers,
            parameters=job.entries,
            images=len(job.workload.train),
            steps_per_epoch=job.steps_per_epoch,
            first_step=first_step,
            last_step=job.last_step,
            train_dir=str(self._folder),
            comm_type=s.comm_type,
            samples=job.task.samples,
            chosen=plan.codecs.text if plan.codecs else "",
            fusion=plan.messages.text if plan.messages else "",
            spares=s.spares,
            rounds=rounds_text(s.local_steps, s.outer) if s.has_local_steps else "",
            nesterov=s.uses_nesterov,
        )
