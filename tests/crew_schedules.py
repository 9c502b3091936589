"""Random schedules of ranks without a master that die at any message, over the in-process
transport. All who are left must come to the same weights, bit for bit, with the same steps of the
same ranks; what each of them computed must be in these steps or in its memory; and each gradient
and each image must be used or be lost with the dead.

    python tests/crew_schedules.py --schedules 5000 --seed 0

Of a seed the schedule is always the same; threads may take turns otherwise.
"""

import argparse
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from mortal import Mortal
from support import PATIENCE_S, together
from torch import Size, Tensor

from atomo.codecs import make_codec
from atomo.communicators import Compressor, Direct, Pipeline, Report
from atomo.communicators.allgather import Allgather
from atomo.communicators.allreduce import Allreduce
from atomo.communicators.crew import Crew, Surviving
from atomo.communicators.sharing import part
from atomo.errors import PeerLost, TooFewWorkers
from atomo.fusion import plan
from atomo.grouping import megabytes
from atomo.memory import Residual
from atomo.transports import Transport, network
from atomo.wire import Compression

__all__ = ["Ship", "check", "scheduled"]

OWN = 6  # entries of each rank
MOST = 5  # ranks
IMAGES = 60  # of a step: five, four, three and two ranks get as many each, and seven would not
PARAMETERS = [("w", Size((MOST, OWN))), ("v", Size((MOST, OWN)))]
WAYS = (
    (Allgather, "sgd"),
    (Allgather, "topk(ratio=0.2)"),
    (Allgather, "qsgd"),
    (Allreduce, "sgd"),
    (Allreduce, "randk(ratio=0.5)"),
)


@dataclass
class Log:
    """What a rank came to."""

    weights: Tensor = field(default_factory=lambda: torch.zeros(2 * MOST * OWN))
    counted: list[tuple[int, ...]] = field(default_factory=list)  # by step
    computed: Tensor = field(default_factory=lambda: torch.zeros(2 * MOST * OWN))
    given: Tensor = field(default_factory=lambda: torch.zeros(2 * MOST * OWN))
    too_few: bool = False
    over: bool = False


class Ship:
    """Ranks whose gradient is in their own entries alone."""

    def __init__(self, ranks: int, steps: int, way: int, seed: int, least: int = 1) -> None:
        self.kind, code = WAYS[way]
        # One matrix in each of two buckets; no shape here is large enough to be coded by itself.
        self.buckets = plan(PARAMETERS, make_codec(code), megabytes(130e-6))
        self.wires = network(ranks)
        self.ends: list[Transport] = [*self.wires]
        self.ranks, self.steps, self.seed, self.least = ranks, steps, seed, least
        self.logs = [Log() for _ in range(ranks)]
        self.memories = [Residual() for _ in range(ranks)]
        self.states: list[dict[int, dict[str, Tensor]]] = []
        self.books: list[tuple[int, int, int, int, int, int]] = []
        self.crews: list[Crew | None] = [None] * ranks

    def sail(self, rank: int) -> None:
        """A rank from its first step to the end, or to its death."""
        try:
            self._sail(rank)
        except PeerLost as lost:
            if lost.rank not in (rank, -1):
                raise
            if lost.rank == -1 and not self._is_dead(rank):
                raise

    def _is_dead(self, rank: int) -> bool:
        return rank in self.wires[rank]._wires._dead

    def _sail(self, rank: int) -> None:
        crew = Crew(self.ends[rank], self.ranks, self.least, IMAGES, PATIENCE_S)
        self.crews[rank] = crew
        direct, log, memory = Direct(crew.circle, PATIENCE_S), self.logs[rank], self.memories[rank]
        compressor = Compressor(memory, Compression(codec="none"), rank + 1, seed=0)
        pipeline = Pipeline(direct, compressor, self.kind(direct, compressor))
        communicator = Surviving(crew, direct, pipeline)
        try:
            for step in range(1, self.steps + 1):
                self._step(rank, step, crew, communicator)
                if step % 3 == 0:
                    self._save(crew, step, log)
        except TooFewWorkers:
            log.too_few = True
        self._save(crew, len(log.counted), log)
        crew.end()
        log.over = True

    def _step(self, rank: int, step: int, crew: Crew, communicator: Surviving) -> None:
        log, out = self.logs[rank], torch.empty(2 * MOST * OWN)
        communicator.begin(step, self.buckets, out)
        sharing = crew.sharers(step)
        images = len(part(IMAGES, sharing.index(rank), len(sharing)))
        gradient = self.gradient(rank, step)
        log.computed += gradient
        for bucket in self.buckets:
            flat = gradient[bucket.offset : bucket.offset + bucket.size].clone()
            communicator.push(bucket, flat)
        report = Report(1.0, 2.0, float(images), 0.1, 0.2, 0.3, 0.4)
        reports = communicator.average(report).reports
        log.weights += out
        whole = sum(one.images for one in reports.values())
        log.given += out * self.own(rank) * (whole / images)
        log.counted.append(tuple(reports))
        assert {*reports} <= {*sharing}, (self.seed, step)
        if rank == 0:
            one, two = crew.balances(step, reports)
            self.books.append((one.asked, one.used, one.lost, two.asked, two.used, two.lost))

    def _save(self, crew: Crew, step: int, log: Log) -> None:
        self.states.append(crew.collect({"weights": log.weights.clone()}, step, "the state"))

    def own(self, rank: int) -> Tensor:
        """1 in the entries of a rank."""
        mask = torch.zeros(MOST, OWN)
        mask[rank] = 1.0
        return mask.flatten().repeat(2)

    def gradient(self, rank: int, step: int) -> Tensor:
        """Of a rank and a step: small integers, which sums keep exactly."""
        generator = torch.Generator().manual_seed(1000 * self.seed + 10 * step + rank)
        drawn = torch.randint(-8, 9, (2 * MOST * OWN,), generator=generator)
        return drawn.float() * self.own(rank)

    def kept(self, rank: int) -> Tensor:
        """What a rank's memory has, in the order of the entries."""
        state = self.memories[rank].state_dict()
        return torch.cat(
            [state.get(n, torch.zeros(shape)).flatten() for n, shape in reversed(PARAMETERS)]
        )


def scheduled(seed: int) -> Ship:
    """Ranks of whom some die, each after so many messages."""
    dice = random.Random(seed)
    ranks, steps = dice.randint(2, MOST), dice.randint(1, 5)
    least = dice.choice((1, 1, 2, 3))
    ship = Ship(ranks, steps, dice.randrange(len(WAYS)), seed, min(least, ranks))
    for rank in dice.sample(range(1, ranks), dice.randint(1, ranks - 1)):
        ship.ends[rank] = Mortal(ship.wires[rank], dice.randint(0, 5 * ranks * steps))
    return ship


def check(seed: int) -> tuple[int, int]:
    """Plays a schedule to its end, and asserts that it went as it must; how many ranks died, and
    how many gradients were lost with them.
    """
    ship = scheduled(seed)
    bodies: list[Callable[[], object]] = [lambda r=r: ship.sail(r) for r in range(ship.ranks)]  # type: ignore[misc]
    together(bodies, lambda: ship.wires[0].abort(1))
    left = [rank for rank, log in enumerate(ship.logs) if log.over]
    first = ship.logs[0]
    assert 0 in left, seed
    assert {*range(ship.ranks)} - {*left} == {r for r in range(ship.ranks) if ship._is_dead(r)}
    for rank in left:
        log = ship.logs[rank]
        assert log.weights.equal(first.weights), (seed, rank)
        assert (log.counted, log.too_few) == (first.counted, first.too_few), (seed, rank)
        error = (log.given + ship.kept(rank) - log.computed).abs().max()
        assert error < 1e-3, (seed, rank, error)
    assert first.too_few or len(first.counted) == ship.steps, seed
    lost = 0
    for step, (asked, used, gone, *images) in enumerate(ship.books):
        assert asked == used + gone, (seed, step)
        assert images[0] == images[1] + images[2] == IMAGES, (seed, step)
        assert used == len(first.counted[step]), (seed, step)
        lost += gone
    for states in ship.states:
        if states:
            assert all(state["weights"].equal(states[0]["weights"]) for state in states.values())
    return ship.ranks - len(left), lost


def main() -> None:
    """Plays as many schedules as are asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(options.seed, options.seed + options.schedules)
    died, lost = (sum(one) for one in zip(*map(check, seeds), strict=True))
    sys.stdout.write(f"{len(seeds)} schedules: {died} ranks died, {lost} gradients were lost\n")


if __name__ == "__main__":
    main()
