"""A worker: gradients of its own images at the master's weights, until told to stop."""

import time
from typing import final

import torch

from atomo.core.devices import to_device
from atomo.exchange import Client, Compressor, Follower, Report
from atomo.memory import make_memory
from atomo.options.weight_sync import repeats_steps, weights_dtype
from atomo.training.job.events import DONE
from atomo.training.job.job import Job
from atomo.training.loop.worker_state import restore, worker_state
from atomo.training.optim.optimizer import FlatOptimizer
from atomo.training.records.worker_lines import WorkerLines
from atomo.training.step.forward_backward import ForwardBackward
from atomo.training.step.row_gradients import row_gradients
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
        self._job, self._transport = job, transport
        self._lines = WorkerLines(job, transport.rank)
        rows = row_gradients(job)
        self._passes = ForwardBackward(
            job,
            transport.rank,
            device,
            lambda bucket, flat: self._client.push(bucket, flat),
            lambda: self._client.flush(),
            rows,
        )
        settings = job.settings
        self._workers = tuple(range(1, 1 + job.workers))  # who shares a step
        self._memory = make_memory(
            settings.memory, settings.momentum_of_sgd, settings.nesterov, settings.workers
        )
        self._compressor = Compressor(
            self._memory,
            settings.compression,
            transport.rank,
            settings.seed,
            job.late_share,
            {} if rows is None else rows,
        )
        follower = self._follower(transport.rank)
        if repeats_steps(settings.down, transport.local_size == transport.size):
            follower.prepare()  # beside the master's
        timeout, threads = settings.timeout, torch.get_num_threads()
        if device.type == "cuda":  # what waits for the device is not what launches the passes
            threads = max(threads, 2)
        dtype = weights_dtype(settings.down)
        waits = transport.rank > job.workers
        self._client = Client(
            transport, job.entries, self._compressor, timeout, threads, follower, dtype, waits
        )

    def _follower(self, rank: int) -> Follower:
        """Builds the part that keeps the weights equal to the master's."""
        job = self._job
        return Follower(
            self._passes.weights.cpu(),  # no copy where that is where they are
            lambda weights: FlatOptimizer(
                weights, job.buckets, job.settings, job.rate, averages=False
            ),
            job.buckets_at,
            rank,
            self._transport.size - 1,
            job.share,
            job.down_buckets,
        )

    def run(self) -> str:
        """Serves the master until it says stop; the master knows why."""
        device = self._passes.weights.device
        while True:
            order = self._client.pull()
            self.step = order.step
            match order.kind:
                case Kind.WEIGHTS | Kind.BEGIN if order.weights is not None:
                    self._share(order.workers)
                    self._passes.weights.copy_(to_device(order.weights, device))
                    self._memory.set_learning_rate(self._job.rate.at(order.step))
                    wait_s = time.perf_counter() - self._client.wait_started - order.follow_s
                    self._take_step(order.step, wait_s, order.follow_s)
                case Kind.SAVE:
                    # Who was late saves in the same units as the others.
                    self._memory.set_learning_rate(self._job.rate.at(max(1, order.step)))
                    self._client.send_state(worker_state(self._memory, self._passes.model))
                case Kind.STATE if order.state is not None:
                    restore(order.state, self._memory, self._passes.model)
                case _:
                    self._passes.close()
                    return DONE

    def _share(self, workers: tuple[int, ...]) -> None:
        """Takes its part of each step from now on, with these: some left, or joined."""
        if workers != self._workers:
            self._workers = workers
            self._passes.share(workers)
            self._compressor.late_share = self._job.late_share_of(len(workers))

    def _take_step(self, step: int, wait_s: float, follow_s: float) -> None:
        client, started = self._client, time.perf_counter()
        before = self._transport.sent_bytes
        client.begin(self._job.buckets_at(step))
        done = self._passes.run(step)
        compute_s = time.perf_counter() - started - client.encode_s - client.send_s
        counts = done.loss, done.correct, done.samples
        times = compute_s, client.encode_s, client.send_s, wait_s
        report = Report(*counts, *times, done.square, follow_s)
        client.report(report)
        sent = self._transport.sent_bytes - before
        self._lines.tell(step, report, done.metrics, time.perf_counter() - started + wait_s, sent)
