"""A worker: computes gradients of its own samples at the master's weights, until it is stopped."""

import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from atomo.codecs.rows import RowGradient
from atomo.core.devices import to_device
from atomo.exchange import Client, Command, Compressor, Follower, Pace, Report
from atomo.exchange.engine.stages import SerialExecutor
from atomo.fusion import Bucket
from atomo.memory import Memory, make_memory
from atomo.options.weight_sync import repeats_steps, weights_dtype
from atomo.training.checkpoints.schema import without_rounds
from atomo.training.job.events import DONE
from atomo.training.job.job import Job
from atomo.training.job.round_plan import Round, RoundSource
from atomo.training.loop.local_steps import LocalSteps, saved_steps
from atomo.training.loop.paced_rounds import PacedRounds, paces
from atomo.training.loop.worker_rounds import WorkerRounds
from atomo.training.loop.worker_state import restore, worker_state
from atomo.training.optim.round_optimizer import make_flat_optimizer, make_optimizer
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
            lambda bucket, flat: self._push(bucket, flat),
            lambda: self._flush(),
            rows,
        )
        self._paced = PacedRounds(job, transport.rank - 1) if paces(job.settings) else None
        self._rounds: RoundSource = self._paced or job.rounds
        self._round = job.rounds.at(1)
        self._own_rounds = self._make_rounds()
        self._puller = SerialExecutor("pull")
        self._pulled: Future[Command] | None = None  # a command that arrives during an overlap
        self._compute_s = 0.0  # of the passes since the last report of a round
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

    def _make_rounds(self) -> WorkerRounds | None:
        """Builds the rounds of local steps, with an optimizer of this worker; None: there are
        none.
        """
        job, passes = self._job, self._passes
        if not job.settings.has_local_steps:
            return None
        optimizer = make_flat_optimizer(passes.weights, job, averages=False)
        local = LocalSteps(optimizer, job.buckets)
        return WorkerRounds(job, self._rounds, passes.model, passes.weights, local)

    def _make_client(self, threads: int) -> Client:
        job, settings, transport = self._job, self._job.settings, self._transport
        follower = self._follower(transport.rank)
        if repeats_steps(settings.down, transport.local_size == transport.size):
            follower.prepare()  # now, while the master builds its own optimizer
        waits = transport.rank > job.workers
        dtype = weights_dtype(settings.down)
        return Client(
            transport,
            job.served_entries,
            self._compressor,
            job.timeout_s,
            threads,
            follower,
            dtype,
            waits,
            self._follow_pace if self._paced else None,
        )

    def _follower(self, rank: int) -> Follower:
        """Builds the follower, which keeps the weights equal to the master's."""
        job, rounds, weights = self._job, self._rounds, self._passes.weights.cpu()
        return Follower(
            # No copy on the CPU, unless local steps move the weights away from the master's.
            self._own_rounds.flat().cpu() if self._own_rounds else weights,
            lambda weights: make_optimizer(weights, job, rounds, averages=False),
            lambda step: job.served_buckets(rounds.numbered(step)),
            rank,
            self._transport.size - 1,
            job.share,
            job.down_buckets,
        )

    def run(self) -> str:
        """Serves the master until it sends a stop; the master has the reason of the end."""
        device, entries = self._passes.weights.device, self._job.entries
        while True:
            waiting_since = time.perf_counter()
            order = self._pull()
            self._round = self._rounds.numbered(max(1, order.step))
            self.step = self._round.first if order.step else 0
            match order.kind:
                case Kind.WEIGHTS | Kind.BEGIN if order.weights is not None:
                    self._share(order.workers)
                    weights = to_device(order.weights, device)
                    since = max(waiting_since, self._client.wait_started)
                    if self._round.is_local and self._own_rounds:
                        taken = self._own_rounds.begin(weights, self._round)
                        wait_s = max(0.0, time.perf_counter() - since - order.follow_s)
                        times = wait_s, order.follow_s
                        self._take_round(self._own_rounds, weights, taken, times)
                    else:
                        if self._own_rounds:
                            self._own_rounds.forget()
                            weights = weights[:entries]
                        # Without local steps these are the same tensor on the CPU: no copy.
                        self._passes.weights.copy_(weights)
                        wait_s = max(0.0, time.perf_counter() - since - order.follow_s)
                        self._take_step(self._round.last, wait_s, order.follow_s)
                case Kind.SAVE:
                    # A late worker, too, saves its residual in units of this step's learning rate.
                    self._memory.set_learning_rate(self._rate)
                    self._client.send_state(self._state(mid_round=False))
                case Kind.STATE if order.state is not None:
                    restore(without_rounds(order.state), self._memory, self._passes.model)
                    if self._own_rounds:
                        self._own_rounds.load_state_dict(order.state)
                case _:
                    self._passes.close()
                    return DONE

    def _follow_pace(self, number: int, pace: Pace) -> None:
        """Begins a round of a given time, whose steps the master determined."""
        assert self._paced is not None, "rounds have a given time"
        ends = pace.last == self._job.last_step
        round_ = Round(number, pace.first, pace.last, pace.last, True, None, ends)
        self._paced.follow(round_, dict(enumerate(pace.seconds)))

    def _pull(self) -> Command:
        """Waits for the master's next command, which may have come during an overlap."""
        pulled, self._pulled = self._pulled, None
        return pulled.result() if pulled else self._client.pull()

    def _state(self, *, mid_round: bool) -> dict[str, Tensor]:
        """Returns the state of this worker for a checkpoint."""
        inner = self._own_rounds.state_dict(mid_round=mid_round) if self._own_rounds else {}
        return worker_state(self._memory, self._passes.model) | inner

    def _share(self, workers: tuple[int, ...]) -> None:
        """Divides the samples of all later steps among these workers: some left, or joined."""
        if workers != self._workers:
            self._workers = workers
            self._passes.share(workers)
            self._compressor.late_share = self._job.late_share_of(len(workers))

    @property
    def _rate(self) -> float:
        """The learning rate that a residual is divided by: a difference is an update already."""
        return 1.0 if self._round.is_local else self._job.rate.at(self._round.last)

    def _push(self, bucket: Bucket, flat: Float[torch.Tensor, " n"]) -> None:
        """Takes the gradient of a bucket during the backward pass."""
        if self._own_rounds and self._round.is_local:
            self._own_rounds.local.hold(bucket, flat)
        else:
            self._client.push(bucket, flat)

    def _flush(self) -> None:
        """Sends what is left of a gradient after the backward pass."""
        if not self._round.is_local:
            self._client.flush()

    def _take_round(
        self,
        own: WorkerRounds,
        anchor: Float[torch.Tensor, " n"],
        taken: int,
        times: tuple[float, float],
    ) -> None:
        """Takes the steps of a round, and sends the difference between the anchor and the weights.

        Args:
            own: the rounds of this worker.
            anchor: the weights from which all workers begin the round.
            taken: the steps of the round that a checkpoint has already.
            times: the seconds of the wait for the anchor, and of repeating the master's steps.
        """
        round_, started = self._round, time.perf_counter()
        before = self._transport.sent_bytes
        if round_.number > 1 and not self._rounds.numbered(round_.number - 1).is_local:
            self._memory.load_state_dict({})  # parts of gradients, which are no differences
        self._memory.set_learning_rate(self._rate)
        metrics: Mapping[str, float] = {}
        report: Report | None = None
        saved = saved_steps(self._job, round_)
        for step in range(round_.first + taken, round_.last + 1):
            metrics = self._take_local_steps(own.local, step) or metrics
            if step == round_.begins:
                report = self._send_differences(own, anchor, times)
            if step in saved:
                self._client.send_state(self._state(mid_round=True))
        assert report is not None, "the exchange of a round begins in the round"
        sent = self._transport.sent_bytes - before
        round_s = time.perf_counter() - started + times[0]
        self._lines.tell(round_.last, report, metrics, round_s, sent)

    def _take_local_steps(self, local: LocalSteps, step: int) -> Mapping[str, float]:
        """Takes a step with this worker's own gradient, or as often as it is its turn; returns the
        metrics of its last batch.
        """
        started, self.step = time.perf_counter(), step
        metrics: Mapping[str, float] = {}
        if self._paced is None:
            metrics = self._take_turn(local, step)
        else:
            sharing = [worker - 1 for worker in self._workers]
            for worker, following in self._paced.batches(step, sharing):
                with self._paced.timed():
                    metrics = self._take_turn(local, step, worker, following)
        self._compute_s += time.perf_counter() - started
        return metrics

    def _take_turn(
        self,
        local: LocalSteps,
        step: int,
        worker: int | None = None,
        following: tuple[int, int] | None = None,
    ) -> Mapping[str, float]:
        """Takes a local step; arguments as of `ForwardBackward.run`. Returns its metrics."""
        done = self._passes.run(step, worker, following)
        local.step(step, done)
        return done.metrics

    def _send_differences(
        self,
        own: WorkerRounds,
        anchor: Float[torch.Tensor, " n"],
        times: tuple[float, float],
    ) -> Report:
        """Sends the differences of a round; during an overlap its answer arrives meanwhile."""
        client, round_ = self._client, self._round
        client.begin(self._job.served_buckets(round_))
        with self._passes.explained():
            for bucket, flat in own.differences(anchor, round_):
                client.push(bucket, flat)
            client.flush()
        wait_s, follow_s = times
        if self._paced:
            self._compute_s = self._paced.step_s * own.local.taken
        report = own.local.report((self._compute_s, client.encode_s, client.send_s, wait_s))
        report, self._compute_s = replace(report, follow_s=follow_s), 0.0
        client.report(report)
        if round_.begins < round_.last:
            self._pulled = self._puller.submit(client.pull)
        return report

    def _take_step(self, step: int, wait_s: float, follow_s: float) -> None:
        client, started = self._client, time.perf_counter()
        self._memory.set_learning_rate(self._rate)
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
    return make_memory(s.memory, s.momentum_of_sgd, s.uses_nesterov, s.workers)


def threads_for(device: torch.device) -> int:
    """Returns the number of encoding threads of a worker."""
    threads = torch.get_num_threads()
    # On a GPU, the thread that waits for the device must not be the thread that launches kernels.
    return max(threads, 2) if device.type == "cuda" else threads
