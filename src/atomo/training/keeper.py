"""What rank 0 of any run does besides training: it keeps the folder, and tells."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import final

from torch import Tensor

from atomo.errors import CheckpointError
from atomo.identity import record
from atomo.memory import kind_of
from atomo.training.causes import at_start, likely
from atomo.training.checkpoint import Snapshot, finish, save, sweep, unfinish
from atomo.training.chosen import keep_chosen
from atomo.training.contents import BUFFER, check_kept, check_worker, kept_buffers
from atomo.training.events import DRIFTED, Caution, Ended, Event, Saved, Started, StepDone
from atomo.training.job import Job
from atomo.training.kept_fusion import keep_found
from atomo.training.kept_settings import keep_settings
from atomo.training.metrics import MetricsLog
from atomo.training.ownership import RUN, Ownership, own
from atomo.training.resume import find_snapshot, mean, snapshot_of
from atomo.training.watch import Watch

__all__ = ["Keeper", "owned"]


@contextmanager
def owned(folder: Path) -> Iterator[Ownership]:
    """The right to the folder of a run, which is made where there is none, while the block runs.

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


@final
class Keeper:
    """The folder of a run, and what is said of it."""

    def __init__(
        self, job: Job, tell: Callable[[Event], None], owner: Ownership | None = None
    ) -> None:
        """A keeper.

        Args:
            job: whose folder it is.
            tell: gets the events.
            owner: the right to the folder, where this process has it already.
        """
        self._job, self._tell, self._owner = job, tell, owner
        self._folder = Path(job.settings.train_dir)
        self._caution = next(at_start(job.settings), "")  # one is enough: the worst
        self._watch = Watch()

    @contextmanager
    def owning(self) -> Iterator[Ownership]:
        """Has the folder to itself while its block runs."""
        if self._owner is not None:
            yield self._owner
            return
        with owned(self._folder) as owner:
            yield owner

    def snapshot(self) -> Snapshot | None:
        """Where the run goes on; None where it starts anew.

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
            return find_snapshot(self._job.settings)
        # There may be later ones, of a run that lay here before.
        return snapshot_of(self._job.settings, self._folder, again.step - 1)

    @contextmanager
    def logging(self, step: int) -> Iterator[Callable[[StepDone], None]]:
        """Takes in the steps after `step` while its block runs."""
        unfinish(self._folder)  # not before: a refused resume leaves the folder as it was
        keep_settings(self._folder, self._job.settings)
        if self._job.chosen:
            keep_chosen(self._folder, self._job.chosen)
        if self._job.found:
            keep_found(self._folder, self._job.found)
        with MetricsLog(self._folder, step + 1) as log:
            self._begin(step + 1)

            def done(event: StepDone) -> None:
                log.write(event)
                self._tell(event)
                if self._watch.alarms(event.loss):
                    why = "" if self._caution else f"; {likely(self._job.settings)}"
                    self._tell(Caution(f"{self._watch}{why}"))

            yield done

    def save(
        self,
        step: int,
        model: Mapping[str, Tensor],
        optimizer: Mapping[str, Tensor],
        workers: Sequence[Mapping[str, Tensor]],
    ) -> None:
        """Writes a checkpoint. The buffers of its model are the mean of those of the workers."""
        buffers = list(kept_buffers(self._job.model))
        means = {n: mean([state[BUFFER + n] for state in workers], len(workers)) for n in buffers}
        settings = self._job.settings
        config = {**record(settings), **self._job.workload.kept}
        snapshot = Snapshot(step, {**model, **means}, optimizer, tuple(workers), config)
        manifest = save(self._folder, snapshot, settings.keep_checkpoints)
        self._tell(Saved(step, str(manifest)))

    def end(self, step: int, reason: str, late: int = 0, lost: int = 0) -> None:
        """Marks the run as finished, unless it only pauses.

        Args:
            step: the last one.
            reason: why there are no more.
            late: gradients that were under way then, and counted in no step.
            lost: those of which the worker died.
        """
        if reason == DRIFTED:
            return
        finish(self._folder, step, reason)
        self._tell(Ended(step, reason, late, lost))

    def _begin(self, first_step: int) -> None:
        """Says what begins: the run, or what a probe in the middle of it came to."""
        if self._job.again:
            self._tell(self._job.again)
            return
        self._tell(self._started(first_step))
        if self._caution:
            self._tell(Caution(self._caution))

    def _started(self, first_step: int) -> Started:
        job, s = self._job, self._job.settings
        return Started(
            network=s.network,
            dataset=s.dataset,
            code=s.code,
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
            chosen=job.chosen.text if job.chosen else "",
            fusion=job.found.text if job.found else "",
        )
