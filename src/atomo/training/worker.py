"""A worker: gradients of its own images at the master's weights, until told to stop."""

import math
import time
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from atomo.communicators import Client, Compressor, Follower, Report
from atomo.fusion import Bucket
from atomo.memory import make_memory
from atomo.training.job import Job
from atomo.training.learning_rate import learning_rate
from atomo.training.optimizer import FlatOptimizer
from atomo.training.passes import Passes
from atomo.training.worker_state import restore, worker_state
from atomo.transports import Transport
from atomo.wire import Kind

__all__ = ["Worker"]


@final
class Worker:
    """Rank 1..n-1 of a run.

    What it keeps from step to step is its memory and its batch-norm statistics.
    """

    def __init__(self, job: Job, transport: Transport, device: torch.device) -> None:
        self.step = 0  # for who reports an error
        self._job = job
        self._passes = Passes(job, transport.rank, device, self._push, self._push_rest)
        settings = job.settings
        self._memory = make_memory(
            settings.memory, settings.momentum, settings.nesterov, settings.workers
        )
        compressor = Compressor(
            self._memory,
            job.settings.compression,
            transport.rank,
            job.settings.seed,
            job.late_share,
        )
        follower = Follower(
            self._passes.weights.cpu(),  # no copy where that is where they are
            # Not made before it is needed: PyTorch imports a compiler for its first optimiser.
            lambda weights: FlatOptimizer(weights, job.buckets, settings),
            job.buckets_at,
            transport.rank,
            job.workers,
            job.share,
            job.down_buckets,
        )
        timeout, threads = job.settings.timeout, torch.get_num_threads()
        self._client = Client(transport, job.entries, compressor, timeout, threads, follower)
        self._encode_s = self._send_s = 0.0
        self._held: list[tuple[Bucket, Float[Tensor, " n"]]] = []

    def run(self) -> None:
        """Serves the master until it says stop."""
        while True:
            asked = time.perf_counter()
            order = self._client.pull()
            self.step = order.step
            match order.kind:
                case Kind.WEIGHTS | Kind.BEGIN if order.weights is not None:
                    self._passes.weights.copy_(order.weights)
                    self._memory.at_rate(learning_rate(self._job.settings, order.step))
                    wait_s = time.perf_counter() - asked - order.follow_s
                    self._take_step(order.step, wait_s, order.follow_s)
                case Kind.SAVE:
                    # Who was late saves in the same units as the others.
                    self._memory.at_rate(learning_rate(self._job.settings, order.step))
                    self._client.send_state(worker_state(self._memory, self._passes.model))
                case Kind.STATE if order.state is not None:
                    restore(order.state, self._memory, self._passes.model)
                case _:
                    return

    def _take_step(self, step: int, wait_s: float, follow_s: float) -> None:
        self._encode_s = self._send_s = 0.0
        started = time.perf_counter()
        done = self._passes.run(step)
        compute_s = time.perf_counter() - started - self._encode_s - self._send_s
        times = compute_s, self._encode_s, self._send_s, wait_s
        counts = done.loss, done.correct, done.images
        self._client.report(Report(*counts, *times, done.square, follow_s))

    def _push(self, bucket: Bucket, flat: Float[Tensor, " n"]) -> None:
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
