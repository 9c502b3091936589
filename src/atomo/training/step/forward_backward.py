"""The forward and the backward pass of one worker's step, over its own samples.

All random numbers of a pass derive from (seed, step, worker): a worker has no random state to save.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from atomo.codecs.rows import RowGradient
from atomo.core.devices import AsyncScalars
from atomo.core.randomness import derive
from atomo.errors import CodecError, Diverged
from atomo.fusion import Bucket, Gradients, apart, flatten
from atomo.training.job.job import Job
from atomo.training.optim.precision import LossScale, buffers_of, forward_in, put_back
from atomo.training.records.causes import likely
from atomo.training.step.batch_feed import Feed, Order
from atomo.training.step.gradient_dump import GradientDump
from atomo.training.step.layer_errors import LayerErrors
from atomo.workloads import Batch, Scorer
from atomo.workloads.datasets import epoch_seed

__all__ = ["ForwardBackward", "Outcome"]


@final
@dataclass(frozen=True)
class Outcome:
    """Loss, counts and metrics of one worker's passes, beside the gradient."""

    loss: float  # mean over its samples
    correct: float  # correct samples; a sample may be correct in part
    samples: float
    square: float  # squared norm of the gradient if noise damping needs it; else 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Metrics of the batch, if log lines show them."""


@final
class ForwardBackward:
    """Computes gradients of a model at its current weights, bucket by bucket."""

    def __init__(
        self,
        job: Job,
        worker: int,
        device: torch.device,
        push: Callable[[Bucket, Float[Tensor, " n"]], None],
        whole: Callable[[], None] = lambda: None,
        rows: dict[str, RowGradient] | None = None,
    ) -> None:
        """Creates the passes of one worker.

        Args:
            job: the training run; its model moves to `device`.
            worker: number of the worker, from 1; determines its samples.
            device: of the passes.
            push: receives each bucket during the backward pass, as soon as its gradient is
                complete, and may change it in place.
            whole: called after the last bucket was pushed.
            rows: receives the gradients of embeddings as rows; None: all gradients are dense.
        """
        self.model = job.model.to(device).train()
        self.weights = flatten(self.model, job.buckets)
        """All weights in one flat tensor; the model's parameters are views of it."""
        self._job, self.worker, self._device = job, worker, device
        self._push, self._whole = push, whole
        self._shard = job.shard(worker)
        self._feed = Feed(job.workload.train, device)
        stay = frozenset[str]() if rows is None else apart(self.model, job.buckets)
        self._gradients = Gradients(self.model, job.buckets, self._take, rows, stay)
        dump_every = job.settings.dump_every if worker == 1 else 0
        self._dump = GradientDump(Path(job.settings.train_dir) / "gradients", dump_every)
        self._layer_errors = LayerErrors(job, () if rows is None else rows, is_on=worker == 1)
        self._workers: Sequence[int] = range(1, 1 + job.workers)  # that share the samples
        self._turn = self._upcoming = (0, worker)  # step, and the worker whose samples these are
        self._step = 0
        self._norms: list[Tensor] = []  # of this step's buckets if noise damping needs them
        self._loss: AsyncScalars | None = None  # a loss that is not yet checked
        # A GPU's loss is read after the launch of the backward pass: reading waits for the device.
        self._looks_late = device.type != "cpu"
        self._scale = LossScale() if job.settings.precision == "fp16" else None
        self._scores = job.task.scores_training and job.settings.log_format == "atomo"
        self._scorer: Scorer | None = None

    def run(
        self, step: int, worker: int | None = None, upcoming: tuple[int, int] | None = None
    ) -> Outcome:
        """Computes the gradient of `step`, which goes to `push` and `whole`.

        Args:
            step: counts from 1.
            worker: the worker whose samples of the step these are; None: this worker.
            upcoming: the next step and worker, whose samples a device loads ahead; None: the same
                worker at the next step.

        Raises:
            Diverged: the loss or the gradient is no longer finite.
        """
        self._step = step
        self._turn = step, worker or self.worker
        self._upcoming = upcoming or (step + 1, self._turn[1])
        self._norms.clear()
        parts = self._parts(*self._turn)
        before = [] if self._scale is None else buffers_of(self.model)
        passed = self._attempt(parts)
        while self._scale is not None and self._scale.overflows(self._gradients):
            put_back(self.model, before)
            passed = self._attempt(parts)
        with self.explained():
            self._gradients.finish()
            for bucket, flat in self._scale.release() if self._scale else ():
                self._hand_over(bucket, flat)
            self._whole()
        self._dump.finish(step)
        self._layer_errors.finish(step)
        loss, right, samples = (sum(column) for column in zip(*passed, strict=True))
        metrics = {} if self._scorer is None else self._scorer.values()
        square = sum((norm**2 for norm in AsyncScalars(*self._norms).values()), 0.0)
        # The entries are finite, but a square may overflow: the master would refuse the report.
        if not math.isfinite(square):
            raise self._diverged(f"the gradient of worker {self.worker} at step {step} is too long")
        return Outcome(loss, right, samples, square, metrics)

    def close(self) -> None:
        """Frees memory after the last pass."""
        self._gradients.close()
        self._feed.close()

    def share(self, workers: Sequence[int]) -> None:
        """Divides the samples of all later steps among these workers, this worker included."""
        self._workers = workers
        self._shard.divide(workers.index(self.worker), len(workers))

    def _attempt(self, parts: Sequence[Int64[Tensor, " _"]]) -> list[tuple[float, float, float]]:
        """Computes the gradient of all batches; returns their losses, correct samples, samples."""
        torch.manual_seed(derive(self._job.settings.seed, "dropout", *self._turn))
        if self._scale is not None:
            self._scale.begin()
        self._scorer = self._job.workload.scorer() if self._scores else None
        self._gradients.begin(len(parts))
        return [self._pass(place, parts) for place in range(len(parts))]

    def _pass(self, place: int, parts: Sequence[Int64[Tensor, " _"]]) -> tuple[float, float, float]:
        """Runs forward and backward for one of several batches; returns its part of the loss, its
        correct samples and its samples.
        """
        batch, objective, of = self._batch(place, parts), self._job.workload.objective, len(parts)
        with forward_in(self._job.settings.precision, self._device):
            outputs = self.model(*batch.inputs)
            loss = objective.loss(outputs, batch.targets) / of
        right = objective.right(outputs.detach(), batch.targets)
        self._loss = look = AsyncScalars(loss, right)
        if not self._looks_late:
            self._check_loss()
        with self.explained():
            scaled = loss if self._scale is None else loss * self._scale.value
            scaled.backward()  # type: ignore[no-untyped-call]
        self._check_loss()
        if self._scorer is not None:
            self._scorer.add(outputs.detach().float(), batch.targets)
        value, correct = look.values()
        return value, correct, float(len(batch))

    def _check_loss(self) -> None:
        """Raises Diverged if the loss is not finite, before any of its gradient is sent."""
        look, self._loss = self._loss, None
        if look is not None and not math.isfinite(value := look.values()[0]):
            at = f"worker {self.worker} at step {self._step}"
            raise self._diverged(f"the loss of {at} is {value}")

    def _batch(self, place: int, parts: Sequence[Int64[Tensor, " _"]]) -> Batch:
        def following() -> Order:
            if place + 1 < len(parts):
                return self._order(parts[place + 1], self._step)
            return self._order(self._parts(*self._upcoming)[0], self._upcoming[0])

        return self._feed.batch(self._order(parts[place], self._step), following)

    def _parts(self, step: int, worker: int) -> Sequence[Int64[Tensor, " _"]]:
        """Returns the samples of a worker at a step, in batches."""
        indices = self._shard.indices(step, self._workers.index(worker))
        return in_batches(indices, self._job.settings.batch_size)

    def _order(self, indices: Int64[Tensor, " b"], step: int) -> Order:
        return indices, epoch_seed(self._job.settings.seed, self._shard.epoch(step))

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Replaces a CodecError by Diverged if the gradient is not finite."""
        try:
            yield
        except CodecError as error:
            if self._gradients.are_finite():
                raise
            name = f"the gradient of worker {self.worker} at step {self._step}"
            raise self._diverged(f"{name} is no longer finite") from error

    def _take(self, bucket: Bucket, flat: Float[Tensor, " n"]) -> None:
        """Takes a complete bucket."""
        if self._scale is None:
            self._hand_over(bucket, flat)
        else:
            self._scale.hold(bucket, flat)

    def _hand_over(self, bucket: Bucket, flat: Float[Tensor, " n"]) -> None:
        self._check_loss()
        self._dump.add(bucket, flat, self._step)
        self._layer_errors.add(bucket, flat, self._step)
        if self._job.damps_at(self._step):
            self._norms.append(flat.norm())  # before encoding, which changes the bucket
        self._push(bucket, flat)

    def _diverged(self, finding: str) -> Diverged:
        return Diverged(f"{finding}; {likely(self._job.settings)}; the last checkpoint is kept")


def in_batches(indices: Int64[Tensor, " n"], batch_size: int) -> Sequence[Int64[Tensor, " _"]]:
    """Splits samples into as few batches of at most `most` as possible, of equal size or nearly: so
    each batch weighs the same.
    """
    return torch.tensor_split(indices, -(-len(indices) // batch_size))
