"""The recorder of a run on rank 0: it keeps the folder, and tells events."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from atomo.training.records.metrics import MetricsLog
from atomo.training.records.plan_records import keep_plan
from atomo.training.records.retrying_writer import RetryingWriter

__all__ = ["Parts", "RunRecorder", "owned"]

NONE: Final = GradientCounts(asked=0, used=0, late=0, lost=0, under_way=0)


@contextmanager
def owned(folder: Path) -> Iterator[Ownership]:
    """Holds the right to the folder of a run while the block runs; the folder is made if there is
    none.

    Raises:
        CheckpointError: it cannot be made.
        FolderTaken: another run has it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"--train-dir {folder}: {error.strerror}") from error
    with own(folder, RUN) as owner:
        sweep(folder)
        yield owner


PATIENCE_S: Final = 60.0  # for what is written last; of a shorter --timeout, a third


@final
@dataclass(frozen=True)
class Parts:
    """The parts of a checkpoint."""

    model: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    workers: Sequence[Mapping[str, Tensor]]


@final
class RunRecorder:
    """The folder of a run, and what is said of it.

    Once steps are taken, what cannot be written ends nothing: a checkpoint is tried again after a
    later step, with what there is by then.
    """

    def __init__(
        self, job: Job, tell: Callable[[Event], None], owner: Ownership | None = None
    ) -> None:
        """Creates a recorder.

        Args:
            job: whose folder it is.
            tell: gets the events.
            owner: the right to the folder, where this process has it already.
        """
        self._job, self._tell, self._owner = job, tell, owner
        self._folder = Path(job.settings.train_dir)
        self._caution = next(at_start(job.settings), "")  # one is enough: the worst
        self._monitor = DivergenceMonitor()
        self._checkpoints = RetryingWriter("checkpoints", tell)
        self._metrics, self._old = (
            RetryingWriter("metrics", tell),
            RetryingWriter("deletions", tell),
        )
        self._rest = RetryingWriter("records of the run", tell)
        self._needed = 0  # bytes, of a checkpoint
        self._patience_s = min(PATIENCE_S, job.settings.timeout / 3)  # others wait for --timeout

    @property
    def failures(self) -> int:
        """Attempts to write that failed so far."""
        outages = self._checkpoints, self._metrics, self._old, self._rest
        return sum(outage.failures for outage in outages)

    @contextmanager
    def owning(self) -> Iterator[Ownership]:
        """Has the folder to itself while its block runs."""
        if self._owner is not None:
            yield self._owner
            return
        with owned(self._folder) as owner:
            self._owner = owner
            yield owner
            self._owner = None

    def snapshot(self) -> Snapshot | None:
        """Returns the checkpoint that the run goes on from; None if it starts anew.

        Raises:
            CheckpointError: it cannot be read, or is of another run.
            ConfigError: it was made with settings that this run contradicts.
        """
        found = self._found()
        if found:
            check_kept(self._job.workload.kept, found.config)
        for state in found.workers if found else ():
            check_worker(state, self._job.model, kind_of(self._job.settings.memory))
        return found

    def _found(self) -> Snapshot | None:
        again = self._job.again
        if again is None:
            return find_snapshot(self._job.settings, lambda why: self._tell(Caution(why)))
        # There may be later ones, of a run that lay here before.
        return snapshot_of(self._job.settings, self._folder, again.step - 1)

    @contextmanager
    def logging(self, step: int) -> Iterator[Callable[[StepDone], None]]:
        """Takes in the steps after `step` while its block runs."""
        if self._job.again:  # steps were taken: nothing ends for a record
            self._rest.attempt(self._record)
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
        """Writes what the run is."""
        unfinish(self._folder)  # not before: a refused resume leaves the folder as it was
        keep_settings(self._folder, self._job.settings)
        keep_plan(self._folder, self._job.plan)

    @property
    def tries_again(self) -> bool:
        """True if the last checkpoint failed, and it is time for another attempt."""
        return self._checkpoints.due

    def save(self, step: int, parts: Callable[[], Parts]) -> bool:
        """Writes a checkpoint, if it can; whether it could.

        Args:
            step: after which.
            parts: makes what it has, where there is hope; the buffers of the model are then the
                mean of those of the workers.

        Raises:
            FolderTaken: another run has the folder.
        """
        written = self._checkpoints.attempt(lambda: self._write(step, parts))
        if written:
            self._prune(step)
        return written

    def save_last(self, step: int, parts: Parts) -> None:
        """Writes the checkpoint that there is no later one for.

        Raises:
            CheckpointError: it still cannot be written after a minute of trying.
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
        else:  # before states are gathered for nothing
            self._probe(step)
        made = parts()
        buffers, states = list(kept_buffers(self._job.model)), made.workers
        means = {n: mean([state[BUFFER + n] for state in states], len(states)) for n in buffers}
        config = {**record(self._job.settings), **self._job.workload.kept}
        model = {**made.model, **means}
        tensors = (model, made.optimizer, *states)
        self._needed = sum(held.nbytes for part in tensors for held in part.values())
        manifest = write(self._folder, Snapshot(step, model, made.optimizer, tuple(states), config))
        self._tell(Saved(step, str(manifest)))

    def _probe(self, step: int) -> None:
        self._check()
        probe(self._folder / manifest_name(step), self._needed)

    def _check(self) -> None:
        if self._owner is not None:
            self._owner.check()

    def _prune(self, step: int) -> None:
        """Deletes old checkpoints, if it can."""
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
            step: the last one.
            reason: why there are no more.
            gradients: what became of those that were under way then, and counted in no step.
            images: the same of theirs.

        Raises:
            CheckpointError: the mark still cannot be written after a minute of trying.
        """
        if reason == DRIFTED:
            return
        mark = partial(finish, self._folder, step, reason)
        self._rest.insist(mark, self._patience_s, time.sleep)
        books = gradients.late, gradients.lost, images.late, images.lost
        refused = gradients.refused, images.refused
        self._tell(Ended(step, reason, *books, *refused))

    def _begin(self, first_step: int) -> None:
        """Says what begins: the run, or what a probe in the middle of it came to."""
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
        )
