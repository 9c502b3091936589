"""A worker: gradients of its own images at the master's weights, until told to stop."""

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cross_entropy

from atomo.communicators import Client, Compressor, Report
from atomo.data import epoch_seed
from atomo.errors import CodecError, Diverged
from atomo.fusion import Bucket, Gradients, flatten
from atomo.memory import make_memory
from atomo.randomness import derive
from atomo.training.causes import likely
from atomo.training.contents import BUFFER, MEMORY, check_worker
from atomo.training.dump import GradientDump
from atomo.training.job import Job
from atomo.training.learning_rate import learning_rate
from atomo.transports import Transport
from atomo.wire import Kind

__all__ = ["Worker"]


@final
class Worker:
    """Rank 1..n-1 of a run.

    Everything random about a step derives from (seed, step, worker), so that a worker has no
    random state to save: what it keeps is its memory and its batch-norm statistics.
    """

    def __init__(self, job: Job, transport: Transport, device: torch.device) -> None:
        self.step = 0  # for who reports an error
        self._job, self._rank, self._device = job, transport.rank, device
        self._shard = job.shard(transport.rank)
        self._model = job.model.to(device).train()
        self._weights = flatten(self._model, job.buckets)
        settings = job.settings
        self._memory = make_memory(
            settings.memory, settings.momentum, settings.nesterov, settings.n - 1
        )
        compressor = Compressor(
            self._memory,
            job.settings.compression,
            transport.rank,
            job.settings.seed,
            job.late_share,
        )
        self._client = Client(
            transport, job.entries, compressor, job.settings.timeout, torch.get_num_threads()
        )
        self._gradients = Gradients(self._model, job.buckets, self._push)
        every = job.settings.dump_every if transport.rank == 1 else 0
        self._dump = GradientDump(Path(job.settings.train_dir) / "gradients", every)
        self._encode_s = self._send_s = self._square = 0.0
        self._held: list[tuple[Bucket, Float[Tensor, " n"]]] = []

    def run(self) -> None:
        """Serves the master until it says stop."""
        while True:
            asked = time.perf_counter()
            order = self._client.pull()
            self.step = order.step
            match order.kind:
                case Kind.WEIGHTS if order.weights is not None:
                    self._weights.copy_(order.weights)
                    self._memory.at_rate(learning_rate(self._job.settings, order.step))
                    self._take_step(order.step, time.perf_counter() - asked)
                case Kind.SAVE:
                    # Who was late saves in the same units as the others.
                    self._memory.at_rate(learning_rate(self._job.settings, order.step))
                    self._client.send_state(self._state())
                case Kind.STATE if order.state is not None:
                    self._restore(order.state)
                case _:
                    return

    def _take_step(self, step: int, wait_s: float) -> None:
        self._encode_s = self._send_s = 0.0
        started = time.perf_counter()
        loss, correct, images = self._forward_backward(step)
        compute_s = time.perf_counter() - started - self._encode_s - self._send_s
        times = compute_s, self._encode_s, self._send_s, wait_s
        self._client.report(Report(loss, correct, images, *times, self._square))

    def _forward_backward(self, step: int) -> tuple[float, float, float]:
        seed, epoch = self._job.settings.seed, self._shard.epoch(step)
        indices = self._shard.indices(step)
        images, labels = self._job.dataset.train.batch(indices, epoch_seed(seed, epoch))
        images, labels = images.to(self._device), labels.to(self._device)
        torch.manual_seed(derive(seed, "dropout", step, self._rank))
        self._gradients.begin()
        scores = self._model(images)
        loss = cross_entropy(scores, labels)
        value = float(loss.detach())
        if not math.isfinite(value):
            raise Diverged(
                f"the loss of worker {self._rank} at step {step} is {value}{self._why()}"
            )
        self._encode_all(loss, step)
        self._dump.finish(step)
        correct = (scores.detach().argmax(1) == labels).sum()
        return value, float(correct), float(len(labels))

    def _encode_all(self, loss: Tensor, step: int) -> None:
        """The backward pass, in which buckets are encoded as they come, and what it leaves."""
        self._square = 0.0
        try:
            loss.backward()  # type: ignore[no-untyped-call]
            self._gradients.finish()
            self._push_rest()
        except CodecError as error:
            if self._gradients.are_finite():
                raise
            raise Diverged(
                f"the gradient of worker {self._rank} at step {step} is no longer finite"
                f"{self._why()}"
            ) from error

    def _why(self) -> str:
        return f"; {likely(self._job.settings)}; the last checkpoint is kept"

    def _push(self, bucket: Bucket, flat: Float[Tensor, " n"]) -> None:
        self._dump.add(bucket, flat, self.step)
        if self._job.damps_at(self.step):
            self._square += float(flat.norm()) ** 2  # now: encoding uses it up
        if self._memory.needs_norm or self._agrees():
            self._held.append((bucket, flat))  # until the gradient is whole
        else:
            self._encode_and_send(bucket, flat)

    def _push_rest(self) -> None:
        """What waits for the whole gradient, and what is not compressed yet."""
        if self._held:
            self._memory.begin(math.hypot(*(float(flat.norm()) for _, flat in self._held)))
        if self._held and self._agrees():
            self._agree()
        for bucket, flat in self._held:
            self._encode_and_send(bucket, flat)
        self._held.clear()
        started = time.perf_counter()
        send_s = self._client.flush()
        self._send_s += send_s
        self._encode_s += time.perf_counter() - started - send_s

    def _agrees(self) -> bool:
        """Whether the codec of this step has all workers encode with the same scales."""
        return any(bucket.agreeing for bucket in self._job.buckets_at(self.step))

    def _agree(self) -> None:
        started = time.perf_counter()
        buckets = self._job.buckets_at(self.step)
        wait_s = self._client.agree([(buckets[b.number], flat) for b, flat in self._held])
        self._send_s += wait_s
        self._encode_s += time.perf_counter() - started - wait_s

    def _encode_and_send(self, bucket: Bucket, flat: Float[Tensor, " n"]) -> None:
        started = time.perf_counter()
        # The codec of this step may be another than when the gradients were laid out.
        bucket = self._job.buckets_at(self.step)[bucket.number]
        send_s = self._client.push(bucket, flat)
        self._send_s += send_s
        self._encode_s += time.perf_counter() - started - send_s

    def _state(self) -> dict[str, Tensor]:
        memory = {MEMORY + name: t for name, t in self._memory.state_dict().items()}
        return memory | {BUFFER + name: t for name, t in self._model.named_buffers()}

    def _restore(self, state: Mapping[str, Tensor]) -> None:
        check_worker(state, self._model, type(self._memory))
        buffers = dict(self._model.named_buffers())
        for name, tensor in state.items():
            if name.startswith(BUFFER):
                buffers[name.removeprefix(BUFFER)].copy_(tensor)
        self._memory.load_state_dict(
            {
                name.removeprefix(MEMORY): tensor.to(self._device)
                for name, tensor in state.items()
                if name.startswith(MEMORY)
            }
        )
