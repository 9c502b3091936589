"""A worker: computes gradients of its own samples at the master's weights, until it is stopped."""

import time
from typing import final

import torch

from atomo.codecs.rows import RowGradient
from atomo.core.devices import to_device
from atomo.exchange import Client, Compressor, Follower, Report
from atomo.memory import Memory, make_memory
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
    """Rank 1..n-1 of a run. Its state between steps is its memory and its batch-norm statistics."""

    def __init__(self, job: Job, transport: Transport, device: torch.device) -> None:
        self.step = 0  # the current step, for error messages
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
        self._workers = tuple(range(1, 1 + job.workers))  # the workers that share a step
        self._memory = memory_of(job)
        self._compressor = self._make_compressor({} if rows is None else rows)
        self._client = self._make_client(threads_for(device))

    def _make_compressor(self, rows: dict[str, RowGradient]) -> Compressor:
        job, settings = self._job, self._job.settings
        rank = self._transport.rank
        return Compressor(
            self._memory, settings.compression, rank, settings.seed, job.late_share, rows
        )

    def _make_client(self, threads: int) -> Client:
        job, settings, transport = self._job, self._job.settings, self._transport
        follower = self._follower(transport.rank)
        if repeats_steps(settings.down, transport.local_size == transport.size):
            follower.prepare()  # now, while the master builds its own optimizer
        waits = transport.rank > job.workers
        dtype = weights_dtype(settings.down)
        return Client(
            transport,
            job.entries,
            self._compressor,
            settings.timeout,
            threads,
            follower,
            dtype,
            waits,
        )

    def _follower(self, rank: int) -> Follower:
        """Builds the follower, which keeps the weights equal to the master's."""
        job = self._job
        return Follower(
            self._passes.weights.cpu(),  # no copy on the CPU
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
        """Serves the master until it sends a stop; the master has the reason of the end."""
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
                    # A late worker, too, saves its residual in units of this step's learning rate.
                    self._memory.set_learning_rate(self._job.rate.at(max(1, order.step)))
                    self._client.send_state(worker_state(self._memory, self._passes.model))
                case Kind.STATE if order.state is not None:
                    restore(order.state, self._memory, self._passes.model)
                case _:
                    self._passes.close()
                    return DONE

    def _share(self, workers: tuple[int, ...]) -> None:
        """Divides the samples of all later steps among these workers: some left, or joined."""
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


def memory_of(job: Job) -> Memory:
    """Builds the memory of a worker."""
    s = job.settings
    return make_memory(s.memory, s.momentum_of_sgd, s.nesterov, s.workers)


def threads_for(device: torch.device) -> int:
    """Returns the number of encoding threads of a worker."""
    threads = torch.get_num_threads()
    # On a GPU, the thread that waits for the device must not be the thread that launches kernels.
    return max(threads, 2) if device.type == "cuda" else threads
