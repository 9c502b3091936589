"""The master: owns weights and optimiser, takes the steps, writes the checkpoints."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import final

from torch import Tensor

from atomo.communicators import Coder, Report, Server, Source, make_down
from atomo.config import record
from atomo.downlink import weights_dtype
from atomo.errors import CheckpointError
from atomo.fusion import flatten
from atomo.memory import kind_of
from atomo.training.causes import at_start, likely
from atomo.training.checkpoint import Snapshot, finish, save, sweep, unfinish
from atomo.training.contents import check_worker, load_model, without_exchange
from atomo.training.damping import Damping, without_damping
from atomo.training.events import Caution, Ended, Event, Saved, Started, StepDone
from atomo.training.job import Job
from atomo.training.kept_settings import keep_settings
from atomo.training.metrics import MetricsLog
from atomo.training.optimizer import FlatOptimizer
from atomo.training.ownership import RUN, Ownership, own
from atomo.training.resume import find_snapshot, mean, spread
from atomo.training.watch import Watch
from atomo.transports import Transport

__all__ = ["Master"]


@final
class Master:
    """Rank 0 of a run.

    Batch-norm statistics: each worker keeps its own, over its own images; a checkpoint's model has
    their mean, and the workers' own come back to them on a resume.
    """

    def __init__(
        self,
        job: Job,
        transport: Transport,
        tell: Callable[[Event], None],
        interrupted: Callable[[], bool],
    ) -> None:
        self.step = 0  # for who reports an error
        self._job, self._transport, self._tell, self._interrupted = (
            job,
            transport,
            tell,
            interrupted,
        )
        self._folder = Path(job.settings.train_dir)
        self._weights = flatten(job.model, job.buckets)
        self._optimizer = FlatOptimizer(self._weights, job.buckets, job.settings, job.rate)
        self._server = Server(
            transport,
            job.buckets,
            job.settings.num_aggregate,
            job.settings.timeout,
            make_down(job.settings.down, self._source()),
            share=job.share,
        )
        self._damping = Damping()
        self._caution = next(at_start(job.settings), "")  # one is enough: the worst
        self._watch = Watch()
        self._saved = -1
        self._step_s = 0.0  # smoothed

    def _source(self) -> Source:
        """What the ways down are made of."""
        return Source(
            self._transport.local_size == self._transport.size,
            self._optimizer.state_dict,
            self._job.down_buckets,
            Coder(self._job.settings.compression, self._job.settings.seed),
            weights_dtype(self._job.settings.down),
        )

    def run(self) -> None:
        """Trains to the end, or until interrupted."""
        self._make_folder()
        with own(self._folder, RUN) as owner:
            self._run(owner)

    def _run(self, owner: Ownership) -> None:
        sweep(self._folder)
        self.step = self._resume()
        unfinish(self._folder)  # not before: a refused resume leaves the folder as it was
        keep_settings(self._folder, self._job.settings)
        with MetricsLog(self._folder, self.step + 1) as log:
            self._tell(self._started())
            if self._caution:
                self._tell(Caution(self._caution))
            if not self.step:
                self._server.meet(self._weights)
            reason = self._train(log, owner)
        if self._saved != self.step:
            self._save(owner)
        self._server.stop()
        finish(self._folder, self.step, reason)
        self._tell(Ended(self.step, reason))

    def _train(self, log: MetricsLog, owner: Ownership) -> str:
        """Takes steps until there are none left, or until interrupted; says which."""
        while self.step < self._job.last_step:
            done = self._take_step(self.step + 1)
            log.write(done)
            self._tell(done)
            self._tell_notes()
            if self._watch.alarms(done.loss):
                why = "" if self._caution else f"; {likely(self._job.settings)}"
                self._tell(Caution(f"{self._watch}{why}"))
            if self._interrupted():
                return "interrupted"
            if self.step % self._job.settings.eval_freq == 0:
                self._save(owner)
        return "done"

    def _tell_notes(self) -> None:
        """What the server found out about the workers."""
        for note in self._server.notes:
            self._tell(Caution(note))
        self._server.notes.clear()

    def _make_folder(self) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(f"--train-dir {self._folder}: {error.strerror}") from error

    def _resume(self) -> int:
        snapshot = find_snapshot(self._job.settings)
        if snapshot is None:
            return 0
        load_model(self._job.model, snapshot.model)
        self._damping.load_state_dict(snapshot.optimizer)
        self._optimizer.load_state_dict(without_exchange(without_damping(snapshot.optimizer)))
        for state in snapshot.workers:
            check_worker(state, self._job.model, kind_of(self._job.settings.memory))
        if snapshot.workers:
            self._server.restore(spread(snapshot.workers, self._job.workers))
        if self._job.settings.resume == "auto":
            self._saved = snapshot.step
        return snapshot.step

    def _take_step(self, step: int) -> StepDone:
        transport, server = self._transport, self._server
        before = transport.received_bytes, transport.sent_bytes, server.decode_s
        started = time.perf_counter()
        server.recode(self._job.buckets_at(step))
        server.broadcast(step, self._weights)
        reports = server.collect(self._optimizer.gradient)
        collected = time.perf_counter()
        factor = self._factor(step, reports)
        self._optimizer.step(step, factor)
        server.took(factor)
        self.step = step
        ended = time.perf_counter()
        return self._done(
            reports,
            factor,
            up=transport.received_bytes - before[0],
            down=transport.sent_bytes - before[1],
            decode_s=server.decode_s - before[2],
            update_s=ended - collected,
            step_s=ended - started,
        )

    def _done(
        self,
        reports: Mapping[int, Report],
        factor: float,
        *,
        up: int,
        down: int,
        decode_s: float,
        update_s: float,
        step_s: float,
    ) -> StepDone:
        self._step_s = 0.9 * self._step_s + 0.1 * step_s if self._step_s else step_s
        counted = list(reports.values())
        images = sum(report.images for report in counted)
        return StepDone(
            step=self.step,
            epoch=self.step / self._job.steps_per_epoch,
            loss=average([report.loss for report in counted]),
            accuracy=sum(report.correct for report in counted) / images,
            lr=self._optimizer.learning_rate(self.step),
            workers=len(counted),
            images_per_s=images / step_s,
            up_bytes=up,
            down_bytes=down,
            dense_bytes=4 * self._job.entries * len(counted),
            step_s=step_s,
            compute_s=average([report.compute_s for report in counted]),
            encode_s=average([report.encode_s for report in counted]),
            send_s=average([report.send_s for report in counted]),
            wait_s=average([report.wait_s for report in counted]),
            decode_s=decode_s,
            update_s=update_s,
            eta_s=(self._job.last_step - self.step) * self._step_s,
            damping=factor,
            follow_s=average([report.follow_s for report in counted]),
        )

    def _factor(self, step: int, reports: Mapping[int, Report]) -> float:
        """What the noise of the codec leaves of the learning rate."""
        if not self._job.damps_at(step):
            return 1.0
        square = average([report.square for report in reports.values()])
        return self._damping.factor(square, float(self._optimizer.gradient.norm()) ** 2)

    def _save(self, owner: Ownership) -> None:
        owner.check()
        states = self._server.save()
        model: dict[str, Tensor] = dict(self._job.model.state_dict())
        for name, _ in self._job.model.named_buffers():
            model[name] = mean([state[f"buffer/{name}"] for state in states], len(states))
        snapshot = Snapshot(
            self.step,
            model,
            self._optimizer.state_dict() | self._damping.state_dict(),
            tuple(states),
            record(self._job.settings),
        )
        manifest = save(self._folder, snapshot, self._job.settings.keep_checkpoints)
        self._saved = self.step
        self._tell(Saved(self.step, str(manifest)))
        self._tell_notes()

    def _started(self) -> Started:
        job = self._job
        return Started(
            network=job.settings.network,
            dataset=job.settings.dataset,
            code=job.settings.code,
            memory=job.settings.memory,
            workers=job.workers,
            parameters=job.entries,
            images=len(job.workload.train),
            steps_per_epoch=job.steps_per_epoch,
            first_step=self.step + 1,
            last_step=job.last_step,
            train_dir=str(self._folder),
            samples=job.task.samples,
        )


def average(values: Sequence[float]) -> float:
    """The mean."""
    return sum(values) / len(values)
