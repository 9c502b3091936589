"""Random schedules of ranks without a master that die at any message, and of spares that take
their places or die too, over the in-process transport. All who are left must come to the same
weights, bit for bit, with the same steps of the same ranks; what each of them computed must be in
these steps or in its memory; each gradient and each image must be used or be lost with the dead;
and no place stays free while a spare waits.

    python tests/support/elastic_schedules.py --schedules 5000 --seed 0

Of a seed the schedule is always the same; threads may take turns otherwise.
"""

import argparse
import random
import sys
import threading
from collections.abc import Callable
from dataclasses import astuple, dataclass, field
from typing import NoReturn

import torch
from support.crashing_transport import CrashingTransport
from support.harness import PATIENCE_S, together
from torch import Size, Tensor

from atomo.codecs import make_codec
from atomo.errors import PeerLost, TooFewWorkers
from atomo.exchange import Compressor, Direct, Pipeline, Report
from atomo.exchange.elastic import ElasticCommunicator, ElasticGroup
from atomo.exchange.reductions.allgather import Allgather
from atomo.exchange.reductions.allreduce import Allreduce
from atomo.exchange.sharing import part
from atomo.fusion import plan
from atomo.memory import Residual
from atomo.options.grouping import megabytes
from atomo.transports import Transport, network
from atomo.wire import Compression

__all__ = ["ElasticJob", "ScheduleCounts", "check", "play", "scheduled"]

OWN = 6  # entries of each rank
MOST = 5  # ranks that take part at a time
SPARES = 2
ROWS = MOST + SPARES
IMAGES = 60  # of a step: five, four, three and two ranks get as many each, and seven would not
PARAMETERS = [("w", Size((ROWS, OWN))), ("v", Size((ROWS, OWN)))]
ENTRIES = 2 * ROWS * OWN
WAYS = (
    (Allgather, "sgd"),
    (Allgather, "topk(ratio=0.2)"),
    (Allgather, "qsgd"),
    (Allreduce, "sgd"),
    (Allreduce, "randk(ratio=0.5)"),
)


@dataclass
class Log:
    """The record of a rank."""

    weights: Tensor = field(default_factory=lambda: torch.zeros(ENTRIES))
    before: int = 0  # steps that were taken when it began
    counted: list[tuple[int, ...]] = field(default_factory=list)  # by step since
    shared: list[tuple[int, ...]] = field(default_factory=list)  # the same, with the dead
    computed: Tensor = field(default_factory=lambda: torch.zeros(ENTRIES))
    given: Tensor = field(default_factory=lambda: torch.zeros(ENTRIES))
    notes: list[str] = field(default_factory=list)
    waited: bool = False  # to the end
    too_few: bool = False
    over: bool = False

    @property
    def done(self) -> int:
        """The number of steps that count."""
        return self.before + len(self.counted)


@dataclass(frozen=True)
class ScheduleCounts:
    """Counts of events over schedules."""

    died: int = 0
    lost: int = 0  # gradients
    joined: int = 0
    died_waiting: int = 0
    died_joined: int = 0

    def __add__(self, other: "ScheduleCounts") -> "ScheduleCounts":
        pairs = zip(astuple(self), astuple(other), strict=True)
        return ScheduleCounts(*(one + two for one, two in pairs))


class ElasticJob:
    """Ranks whose gradient is in their own entries alone, and spares that become such ranks."""

    def __init__(
        self, ranks: int, steps: int, way: int, seed: int, least: int = 1, spares: int = 0
    ) -> None:
        self.kind, code = WAYS[way]
        # One matrix in each of two buckets; no shape here is large enough to be coded by itself.
        self.buckets = plan(PARAMETERS, make_codec(code), megabytes(180e-6))
        self.wires = network(ranks + spares)
        self.ends: list[Transport] = [*self.wires]
        self.ranks, self.steps, self.seed, self.least = ranks, steps, seed, least
        self.everyone = range(ranks + spares)
        self.deaths: dict[int, int] = {}  # by rank, the step in which it dies
        self.kills: dict[int, int] = {}  # by spare, the step at whose beginning it dies
        self.hangs: dict[int, int] = {}  # by rank, the step in which it stops until it is killed
        self.patience_s = PATIENCE_S
        self._stopped: dict[int, threading.Event] = {}
        self.wires[0].fence = self._fence  # type: ignore[method-assign]  # no thread can be stopped
        self.logs = [Log() for _ in self.everyone]
        self.memories = [Residual() for _ in self.everyone]
        self.states: list[dict[int, dict[str, Tensor]]] = []
        self.books: list[tuple[int, int, int, int, int, int]] = []

    def sail(self, rank: int) -> None:
        """A rank from its first step to the end, or to its death."""
        try:
            self._sail(rank)
        except PeerLost as lost:
            if lost.rank not in (rank, -1):
                raise
            if lost.rank == -1 and not self._is_dead(rank):
                raise

    def _stop(self, rank: int) -> NoReturn:
        """Blocks until rank 0 has it killed."""
        stopped = self._stopped.setdefault(rank, threading.Event())
        stopped.wait(PATIENCE_S)
        raise PeerLost(rank, "dying, itself")

    def _fence(self, rank: int, *, if_stuck: bool) -> bool:
        assert if_stuck  # who waits for the one that hangs is silent, too
        if rank in self._stopped:
            self.wires[rank].exit_rank(137)
            self._stopped[rank].set()
        return True

    def _is_dead(self, rank: int) -> bool:
        return rank in self.wires[rank]._network._dead

    def _sail(self, rank: int) -> None:
        group = ElasticGroup(self.ends[rank], self.ranks, self.least, IMAGES, self.patience_s)
        direct = Direct(group.transport, self.patience_s)
        log, memory = self.logs[rank], self.memories[rank]
        compressor = Compressor(memory, Compression(codec="none"), rank + 1, seed=0)
        pipeline = Pipeline(direct, compressor, self.kind(direct, compressor))
        communicator = ElasticCommunicator(group, direct, pipeline)
        if group.is_spare and not self._begin(group, log):
            return
        try:
            for step in range(log.before + 1, self.steps + 1):
                self._meet(step, group, log)
                self._step(rank, step, group, communicator)
                log.notes += group.take_notes()
                if step % 3 == 0:
                    self._save(group, step, log)
        except TooFewWorkers:
            log.too_few = True
        self._save(group, log.done, log)
        group.finish()
        log.notes += group.take_notes()
        log.over = True

    def _begin(self, group: ElasticGroup, log: Log) -> bool:
        """Waits for a slot; True if the spare got one."""
        dealt = group.wait_for_slot()
        if dealt is None:
            log.waited = log.over = True
            return False
        log.before, log.weights = dealt.step, dealt.state["weights"].clone()
        return True

    def _meet(self, step: int, group: ElasticGroup, log: Log) -> None:
        if group.rank == 0:
            for rank in (one for one, when in self.kills.items() if when == step):
                self.wires[rank].exit_rank(137)
        joined = group.admit_spares(step)
        if joined and group.rank == 0:
            group.send_start(joined, {"weights": log.weights}, step - 1)

    def _step(
        self, rank: int, step: int, group: ElasticGroup, communicator: ElasticCommunicator
    ) -> None:
        log, out = self.logs[rank], torch.empty(ENTRIES)
        communicator.begin(step, self.buckets, out)
        if self.deaths.get(rank) == step:
            self.wires[rank].exit_rank(137)
            raise PeerLost(rank, "dying, itself")
        if self.hangs.get(rank) == step:
            self._stop(rank)
        sharing = group.sample_split.members_at(step)
        images = len(part(IMAGES, sharing.index(rank), len(sharing)))
        gradient = self.gradient(rank, step)
        log.computed += gradient
        for bucket in self.buckets:
            flat = gradient[bucket.offset : bucket.offset + bucket.size].clone()
            communicator.push(bucket, flat)
        report = Report(1.0, 1.0, float(images), 0.1, 0.2, 0.3, 0.4)
        reports = communicator.average(report).reports
        log.weights += out
        whole = sum(one.images for one in reports.values())
        log.given += out * self.own(rank) * (whole / images)
        log.counted.append(tuple(reports))
        log.shared.append(sharing)
        assert {*reports} <= {*sharing}, (self.seed, step)
        if rank == 0:
            one, two = group.sample_split.balances(step, reports)
            self.books.append((one.asked, one.used, one.lost, two.asked, two.used, two.lost))

    def _save(self, group: ElasticGroup, step: int, log: Log) -> None:
        self.states.append(group.gather_states({"weights": log.weights.clone()}, step, "the state"))

    def own(self, rank: int) -> Tensor:
        """1 in the entries of a rank."""
        mask = torch.zeros(ROWS, OWN)
        mask[rank] = 1.0
        return mask.flatten().repeat(2)

    def gradient(self, rank: int, step: int) -> Tensor:
        """Returns the gradient of a rank at a step: small integers, which sums keep exactly."""
        generator = torch.Generator().manual_seed(1000 * self.seed + 10 * step + rank)
        drawn = torch.randint(-8, 9, (ENTRIES,), generator=generator)
        return drawn.float() * self.own(rank)

    def kept(self, rank: int) -> Tensor:
        """Returns the residuals in a rank's memory, in the order of the entries."""
        state = self.memories[rank].state_dict()
        return torch.cat(
            [state.get(n, torch.zeros(shape)).flatten() for n, shape in reversed(PARAMETERS)]
        )


def scheduled(seed: int) -> ElasticJob:
    """Returns a job in which some ranks die, each after a number of messages, or while
    they wait.
    """
    dice = random.Random(seed)
    ranks, steps = dice.randint(2, MOST), dice.randint(1, 7)
    spares, least = dice.randint(0, SPARES), dice.choice((1, 1, 2, 3))
    job = ElasticJob(ranks, steps, dice.randrange(len(WAYS)), seed, min(least, ranks), spares)
    for rank in dice.sample(range(1, ranks), dice.randint(1, ranks - 1)):
        job.ends[rank] = CrashingTransport(job.wires[rank], dice.randint(0, 5 * ranks * steps))
    for rank in range(ranks, ranks + spares):
        match dice.randrange(4):
            case 0:
                job.ends[rank] = CrashingTransport(job.wires[rank], dice.randint(0, 5 * ranks))
            case 1:
                job.kills[rank] = dice.randint(1, steps)
    return job


def play(job: ElasticJob) -> None:
    """Runs all ranks to their ends."""
    bodies: list[Callable[[], object]] = [lambda r=r: job.sail(r) for r in job.everyone]  # type: ignore[misc]
    together(bodies, lambda: job.wires[0].abort(1))


def check(seed: int) -> ScheduleCounts:
    """Runs a schedule to its end, checks it, and returns the counts."""
    job = scheduled(seed)
    play(job)
    left = [rank for rank, log in enumerate(job.logs) if log.over]
    first = job.logs[0]
    assert 0 in left, seed
    assert {*job.everyone} - {*left} == {r for r in job.everyone if job._is_dead(r)}
    check_places(job)
    for rank in left:
        log = job.logs[rank]
        if log.waited:
            continue
        assert log.weights.equal(first.weights), (seed, rank)
        since = first.counted[log.before :], first.shared[log.before :], first.too_few
        assert (log.counted, log.shared, log.too_few) == since, (seed, rank)
        error = (log.given + job.kept(rank) - log.computed).abs().max()
        assert error < 1e-3, (seed, rank, error)
    assert first.too_few or len(first.counted) == job.steps, seed
    lost = 0
    for step, (asked, used, gone, *images) in enumerate(job.books):
        assert asked == used + gone, (seed, step)
        assert images[0] == images[1] + images[2] == IMAGES, (seed, step)
        assert used == len(first.counted[step]), (seed, step)
        lost += gone
    for states in job.states:
        if states:
            assert all(state["weights"].equal(states[0]["weights"]) for state in states.values())
    joined = {rank for who in first.shared for rank in who if rank >= job.ranks}
    dead_spares = {rank for rank in job.everyone[job.ranks :] if rank not in left}
    parts = len(dead_spares - joined), len(dead_spares & joined)
    return ScheduleCounts(len(job.everyone) - len(left), lost, len(joined), *parts)


def check_places(job: ElasticJob) -> None:
    """Asserts that who has waited to the end did so because all places were taken in each step."""
    first = job.logs[0]
    if any(log.waited for log in job.logs) and not first.too_few:
        assert {len(sharing) for sharing in first.shared} == {job.ranks}, job.seed


def main() -> None:
    """Plays as many schedules as are asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(options.seed, options.seed + options.schedules)
    came = sum(map(check, seeds), ScheduleCounts())
    sys.stdout.write(
        f"{len(seeds)} schedules: {came.died} ranks died, {came.lost} gradients were lost; "
        f"{came.joined} spares joined, of which {came.died_joined} died, and {came.died_waiting} "
        "died before\n"
    )


if __name__ == "__main__":
    main()
