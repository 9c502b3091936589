"""Steps of one rank without a master: its own weights and optimizer.

All ranks start, average and step alike, so their weights stay the same bits.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Final, final

import torch
import xxhash
from jaxtyping import Float
from torch import Tensor

from atomo.exchange import Exchanged, Report, check_images
from atomo.exchange.elastic import ElasticGroup
from atomo.fusion import Bucket
from atomo.options.rounds import UNSENT
from atomo.training.checkpoints.checkpoint import Snapshot
from atomo.training.checkpoints.resume import hosts_in, spread
from atomo.training.checkpoints.schema import (
    AHEAD,
    EXCHANGE,
    LOCAL,
    load_model,
    without_exchange,
    without_round,
    without_rounds,
)
from atomo.training.job.events import DONE, DRIFTED, INTERRUPTED
from atomo.training.job.job import Job
from atomo.training.job.round_plan import Round
from atomo.training.loop.anchored_exchange import AnchoredExchange, EndedRound
from atomo.training.loop.exchange_setup import make_exchange
from atomo.training.loop.local_steps import LocalSteps, joint_report
from atomo.training.loop.paced_rounds import PacedRounds, paces
from atomo.training.loop.worker_state import restore, worker_state
from atomo.training.optim.noise_damping import Damping, without_damping
from atomo.training.optim.one_thread import on_one_thread
from atomo.training.optim.round_optimizer import make_flat_optimizer
from atomo.training.optim.weight_average import WeightAverage, without_average
from atomo.training.step.forward_backward import ForwardBackward, Outcome
from atomo.transports import Transport

__all__ = ["ReplicaStep", "TrainingReplica", "beginnings"]

REASONS: Final = (DONE, DRIFTED, INTERRUPTED)  # reports have their indices; the highest wins
MODEL, OPTIMIZER, WORKER = "model/", "optimizer/", "worker/"  # prefixes of names in a state


@final
@dataclass(frozen=True)
class ReplicaStep:
    """Reports and times of a step, and the wishes of all ranks after it."""

    exchanged: Exchanged
    report: Report  # of this rank
    metrics: Mapping[str, float]  # of this rank's batch, if log lines show them
    factor: float  # on the learning rate, by the noise of the codec
    update_s: float
    step_s: float
    rounds: tuple[EndedRound, ...] = ()
    """The rounds of local steps whose means were applied after this step."""

    @property
    def ending(self) -> str:
        """The strongest reason of any rank to end the steps; `DONE` if no rank has one."""
        wish = max(report.ending for report in self.exchanged.reports.values())
        return REASONS[int(wish)] if wish in range(len(REASONS)) else INTERRUPTED

    @property
    def saving(self) -> bool:
        """True if any rank asks for a checkpoint."""
        return any(report.saving for report in self.exchanged.reports.values())


@final
class TrainingReplica:
    """The training of one rank. Ranks 0..n-1 have the seeds and the samples of workers 1..n."""

    def __init__(
        self,
        job: Job,
        transport: Transport,
        device: torch.device,
        group: ElasticGroup | None = None,
    ) -> None:
        self.step = 0  # done
        self.job = job
        self.exchange, self._group = make_exchange(job, transport, group), group
        self._communicator, self._rank = self.exchange.communicator, transport.rank
        rows = self.exchange.rows
        self._passes = ForwardBackward(job, self._rank + 1, device, self._push, rows=rows)
        leads = self._rank == 0  # and writes the checkpoints
        self._optimizer = make_flat_optimizer(self._passes.weights, job, averages=leads)
        self._damping = Damping()
        self._local = LocalSteps(self._optimizer, job.buckets)
        self._sharing: Sequence[int] = range(job.workers)  # the ranks that share a step
        self._paced = make_paced_rounds(job, self._rank, group)
        self._rounds = self._paced or job.rounds
        self._anchored: AnchoredExchange | None = None  # from the first local step on
        self._average: WeightAverage | None = None  # of the anchors, from then on

    @property
    def round(self) -> Round:
        """The round of the next step."""
        return self._rounds.at(self.step + 1)

    @property
    def is_anchored(self) -> bool:
        """True from the first local step on: the model of a checkpoint is the anchor."""
        return self._anchored is not None

    def take_step(self, *, ending: str = DONE, saving: bool = False) -> ReplicaStep:
        """Takes the next step together with all ranks.

        Args:
            ending: this rank's reason to end after the step; `DONE`: it has none.
            saving: True if this rank asks for a checkpoint.
        """
        round_, started = self.round, time.perf_counter()
        if self._anchored is not None:
            self._anchored.start()
        if self._group:
            self._sharing = self._group.sample_split.members_at(round_.number)
            self._passes.share([1 + rank for rank in self._sharing])
        wishes = {"ending": float(REASONS.index(ending)), "saving": float(saving)}
        take = self._take_local_step if round_.is_local else self._take_averaged_step
        return take(round_, started, wishes)

    def _take_averaged_step(
        self, round_: Round, started: float, wishes: Mapping[str, float]
    ) -> ReplicaStep:
        """Takes a step with the mean of all gradients."""
        step = self.step + 1
        self.exchange.memory.set_learning_rate(self.job.rate.at(step))
        buckets = self.job.buckets_at(step)
        self._communicator.begin(round_.number, buckets, self._optimizer.gradient)
        done = self._passes.run(step)
        times = time.perf_counter() - started, 0.0, 0.0, 0.0
        figures = done.loss, done.correct, done.samples, *times, done.square
        report = Report(*figures, **wishes)
        with self._passes.explained():
            exchanged = self._communicator.average(report)
            check_images(exchanged.reports, self.job.images_of_step)
        averaged = time.perf_counter()
        factor = self._factor(step, exchanged)
        self._optimizer.step(step, factor)
        self.step = step
        ended = time.perf_counter()
        return ReplicaStep(
            exchanged, report, done.metrics, factor, ended - averaged, ended - started
        )

    def _take_local_step(
        self, round_: Round, started: float, wishes: Mapping[str, float]
    ) -> ReplicaStep:
        """Takes a step with this rank's own gradient, and the parts of an exchange that are due."""
        step, anchored = self.step + 1, self._anchored or self._drop_anchor()
        done = self._take_turns(step) if self._paced else [self._take_turn(step)]
        compute_s = self._paced.step_s if self._paced else time.perf_counter() - started
        report = joint_report(done, compute_s)
        if step == round_.begins and not round_.is_late:
            among = len(self._sharing) if self._paced else 0
            anchored.begin(round_, self._round_report(compute_s, wishes), among)
        self.step, stepped, rounds = step, time.perf_counter(), list[EndedRound]()
        if step == round_.last and round_.is_late:
            rounds = anchored.turn(round_, self._round_report(compute_s, wishes))
        elif step == round_.last:
            rounds = [self._paced_on(anchored.finish(round_))]
        if self._average is not None and rounds:
            steps = sum(ended.round.steps for ended in rounds)
            self._average.update(anchored.flat_anchor(), steps)
        now = time.perf_counter()
        times = now - stepped, now - started
        exchanged = reported(rounds) or Exchanged({self._rank: report}, 0.0, 0.0, 0.0)
        metrics = done[-1].metrics if done else {}
        return ReplicaStep(exchanged, report, metrics, 1.0, *times, tuple(rounds))

    def _round_report(self, compute_s: float, wishes: Mapping[str, float]) -> Report:
        """Returns the report of the steps of a round."""
        return replace(self._local.report((compute_s, 0.0, 0.0, 0.0)), **wishes)

    def _paced_on(self, ended: EndedRound) -> EndedRound:
        """Determines the next round of a given time, and notes the local steps of all ranks."""
        if self._paced is None or ended.exchanged is None:
            return ended
        reports, result = ended.exchanged.reports, ended.result
        if result is not None:
            counted = self._paced.steps_of(self._sharing, reports)
            result = replace(result, steps_of=counted)
        self._paced.advance({rank: report.compute_s for rank, report in reports.items()})
        return replace(ended, result=result)

    def _take_turn(
        self, step: int, worker: int | None = None, upcoming: tuple[int, int] | None = None
    ) -> Outcome:
        """Takes a local step with a batch of a step; arguments as of `ForwardBackward.run`."""
        done = self._passes.run(step, worker, upcoming)
        self._local.step(step, done)
        return done

    def _take_turns(self, step: int) -> list[Outcome]:
        """Takes the local steps with this rank's batches of a step: none, one or several."""
        paced, done = self._paced, []
        assert paced is not None, "rounds of a given time have turns"
        for worker, following in paced.batches(step, self._sharing):
            with paced.timed():
                done.append(self._take_turn(step, worker, following))
        return done

    def _drop_anchor(self) -> AnchoredExchange:
        """Makes the anchor of the first round of local steps.

        Memories then hold parts of gradients, which are no differences of weights, and are cleared.
        """
        memory = self.exchange.memory
        if self.step:
            memory.load_state_dict({})
        memory.set_learning_rate(1.0)  # a difference of weights is an update already
        self._anchored = self._make_anchored()
        if self._paced:
            self._paced.begin(self.step + 1)
        return self._anchored

    def _make_anchored(self) -> AnchoredExchange:
        passes, optimizer = self._passes, self._optimizer
        # The average of the weights continues with the anchor.
        self._average, optimizer.average = optimizer.average or self._average, None
        parts = self.job, self._communicator, passes.model, passes.weights
        return AnchoredExchange(*parts, leads=self._rank == 0)

    def _push(self, bucket: Bucket, flat: Float[Tensor, " n"]) -> None:
        """Takes the gradient of a bucket during the backward pass."""
        push = self._local.hold if self.round.is_local else self._communicator.push
        push(bucket, flat)

    def close(self) -> None:
        """Frees memory after the last step."""
        self._passes.close()

    def _factor(self, step: int, exchanged: Exchanged) -> float:
        """Returns the factor on the learning rate, by the noise of the codec."""
        if not self.job.damps_at(step):
            return 1.0
        squares = [report.square for report in exchanged.reports.values()]
        with on_one_thread():
            norm = float(self._optimizer.gradient.norm())
        return self._damping.factor(sum(squares) / len(squares), norm**2)

    def digest(self) -> Tensor:
        """Returns a hash of the weights, 16 bytes; with local steps, of the anchor."""
        if self._anchored is not None:
            return self._anchored.digest()
        data = self._passes.weights.detach().cpu().numpy().data
        return torch.frombuffer(bytearray(xxhash.xxh3_128_digest(data)), dtype=torch.uint8)

    def settle(self) -> None:
        """Waits for the exchange in flight, so that other messages may travel."""
        if self._anchored is not None:
            self._anchored.settle()

    def own_state(self) -> dict[str, Tensor]:
        """Returns the state that differs between ranks: memory, batch-norm statistics and, beside
        rank 0 on its host, the start of its exchange.
        """
        own = worker_state(self.exchange.memory, self._passes.model)
        beside = 0 != self._rank in self.exchange.hosts.ranks_beside(0)
        if self._anchored is not None:
            self.settle()
            own |= self._local.state_dict(mid_round=not self._is_at_anchor)
            own |= {} if self._is_at_anchor else self._anchored.own_state()
        return own | (self.exchange.state_dict() if beside else {})

    def model_state(self, states: Sequence[Mapping[str, Tensor]] = ()) -> dict[str, Tensor]:
        """Returns the parameters, and this rank's buffers; with local steps, the anchor.

        Args:
            states: as of `AnchoredExchange.model_state`.
        """
        if self._anchored is not None:
            return self._anchored.model_state(self._passes.model, states)
        return dict(self._passes.model.state_dict())

    def optimizer_state(self, *, wishes: bool = False) -> dict[str, Tensor]:
        """Returns the state of the optimizer, of noise damping and of the next exchange.

        Args:
            wishes: as of `AnchoredExchange.state_dict`.
        """
        exchange = self.exchange.state_dict()
        if self._paced:
            pace = self._paced.state_dict()
            exchange |= {EXCHANGE + name: tensor for name, tensor in pace.items()}
        if self._anchored is not None:
            average = self._average.state_dict(self.job.buckets) if self._average else {}
            return self._anchored.state_dict(wishes=wishes) | average | exchange
        return self._optimizer.state_dict() | self._damping.state_dict() | exchange

    def snapshot(self) -> dict[str, Tensor]:
        """Returns the start of a rank that joins now: the common state, and this rank's batch-norm
        statistics. Its memory starts empty.
        """
        shared = without_average(self.optimizer_state(wishes=True))
        own: dict[str, Tensor] = {}
        if self._anchored is not None and self._anchored.keeps_unsent:
            own = {LOCAL + name: p.detach() for name, p in self._passes.model.named_parameters()}
        return joined(self.model_state(), shared, own)

    def restore(self, step: int, state: Mapping[str, Tensor]) -> None:
        """Continues after `step` with a state of `joined`.

        Raises:
            CheckpointError: the state is of another model, optimizer or memory.
        """
        self.step = step
        if not state:
            return
        load_model(self._passes.model, under(MODEL, state))
        optimizer = under(OPTIMIZER, state)
        self._damping.load_state_dict(optimizer)
        self.exchange.load_state_dict(under(EXCHANGE, optimizer))
        own = self.exchange.without_others(under(WORKER, state))
        own = without_round(own) if AHEAD in own else own  # its weights wait for a master's anchor
        shared = without_rounds(without_exchange(without_damping(optimizer)))
        self._optimizer.load_state_dict(shared)
        if self.job.rounds.at(max(1, step)).is_local:
            self._restore_round(optimizer, own)
        restore(without_rounds(own), self.exchange.memory, self._passes.model)

    def _restore_round(self, optimizer: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> None:
        """Continues a round of local steps. The weights are the anchor; a worker's own weights, if
        the state has them, replace them.
        """
        self._anchored = self._make_anchored()
        if self._paced:
            self._paced.load_state_dict(under(EXCHANGE, optimizer))
            self._paced.begin(self.step + 1)
        self._anchored.load_state_dict(optimizer, self.round)
        self._anchored.load_own_state(own)
        self._local.load_state_dict(own)

    @property
    def _is_at_anchor(self) -> bool:
        """True if this rank has the anchor: the last step ended a round of the whole model."""
        round_ = self._rounds.at(max(1, self.step))
        at_end = self.step == round_.last and round_.fragment is None
        mix = self.job.settings.local.mix
        stays = round_.is_late or mix
        return at_end and mix != UNSENT and (round_.ends_phase or not stays)


def reported(rounds: Sequence[EndedRound]) -> Exchanged | None:
    """Returns the reports of rounds together; None: there are none."""
    exchanged = [ended.exchanged for ended in rounds if ended.exchanged]
    return reduce(Exchanged.plus, exchanged) if exchanged else None


def make_paced_rounds(job: Job, rank: int, group: ElasticGroup | None) -> PacedRounds | None:
    """Returns the rounds of a given time; None: rounds have a given number of steps."""
    if not paces(job.settings):
        return None
    if group:
        group.sample_split.prescaled = True
    return PacedRounds(job, rank)


def beginnings(snapshot: Snapshot | None, hosts: Sequence[int]) -> list[dict[str, Tensor]]:
    """Returns the state that each rank starts with: of a checkpoint, or empty.

    Args:
        snapshot: the checkpoint; None for a new run.
        hosts: the host of each rank, as the number of the host's first rank.
    """
    if snapshot is None:
        return [{} for _ in hosts]
    workers: Sequence[Mapping[str, Tensor]] = snapshot.workers or [{}]
    own = spread(workers, hosts, hosts_in(snapshot))
    shared = without_average(snapshot.optimizer)
    first = joined(snapshot.model, snapshot.optimizer, own[0])
    return [first, *(joined(snapshot.model, shared, state) for state in own[1:])]


def joined(
    model: Mapping[str, Tensor], optimizer: Mapping[str, Tensor], worker: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Joins the parts of a rank's state under flat names."""
    parts = (MODEL, model), (OPTIMIZER, optimizer), (WORKER, worker)
    return {prefix + name: tensor for prefix, part in parts for name, tensor in part.items()}


def under(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the part of a state under a prefix, without the prefix."""
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in state.items()
        if name.startswith(prefix)
    }
