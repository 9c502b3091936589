"""Random schedules of workers and spares that join, leave, and are late, over the in-process
transport. What the living computed must be in steps or in their memories, each gradient and each
image must count once, and all who counted in a step must have shared it alike.

    python tests/support/server_schedules.py --schedules 5000 --seed 0

Of a seed the schedule is always the same; threads may take turns otherwise.
"""

import argparse
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass

from support.crashing_transport import CrashingTransport
from support.harness import together
from support.server_harness import ServerHarness, kept

__all__ = ["ScheduleCounts", "check", "scheduled", "working"]


@dataclass(frozen=True)
class ScheduleCounts:
    """Counts of events over schedules."""

    joined: int = 0
    late: int = 0
    lost: int = 0

    def __add__(self, other: "ScheduleCounts") -> "ScheduleCounts":
        return ScheduleCounts(
            self.joined + other.joined, self.late + other.late, self.lost + other.lost
        )


def working(harness: ServerHarness, *workers: int) -> list[Callable[[], object]]:
    """Returns the bodies of these workers."""
    return [lambda w=w: harness.work(w) for w in workers]  # type: ignore[misc]


def scheduled(seed: int) -> tuple[ServerHarness, int]:
    """Returns a job and its number of steps; some of its workers and spares die, each after a
    number of messages, and some are late.
    """
    dice = random.Random(seed)
    workers, spares, steps = dice.randint(1, 4), dice.randint(1, 3), dice.randint(2, 6)
    ranks = range(1, 1 + workers + spares)
    slow = [(rank, step) for rank in ranks for step in range(1, steps) if dice.random() < 0.3]
    harness = ServerHarness(
        workers,
        needed=dice.randint(1, workers),
        relays=dice.random() < 0.5,
        spares=spares,
        lends=dice.random() < 0.5,
        lags=slow,
    )
    for rank in dice.sample(ranks, dice.randint(1, len(ranks) - 1)):
        breaths = dice.randint(0, 6 * steps)
        harness.ends[rank - 1] = CrashingTransport(harness.transports[rank], breaths)
    return harness, steps


def check(seed: int) -> ScheduleCounts:
    """Plays a schedule to its end, and asserts that it went as it must."""
    harness, steps = scheduled(seed)

    def lead() -> None:
        for step in range(1, steps + 1):
            counted = harness.step(step)
            sharing = {harness.shared[step, worker] for worker in counted}
            assert len(sharing) == 1, (seed, step, sharing)
            assert {*counted} <= {*sharing.pop()}, (seed, step, counted)
            if step % 3 == 0:
                harness.server.save()
        harness.server.save()  # from here on nobody is told of anything late
        harness.end()

    ranks = range(1, len(harness.ends) + 1)
    together([lead, *working(harness, *ranks)], lambda: harness.transports[0].abort(1))
    return judged(harness, seed)


def judged(harness: ServerHarness, seed: int) -> ScheduleCounts:
    """Checks the books of a harness, and returns its counts."""
    assert harness.balanced(), (seed, harness.books, harness.image_books)
    assert harness.books[-1][0].under_way == harness.image_books[-1][0].under_way == 0, seed
    for worker in harness.server.workers:
        waits = float(kept(harness.memories[worker - 1])[worker])
        assert float(harness.given[worker]) + waits == harness.computed[worker - 1], (seed, worker)
    joined = sum("takes part" in note for note in harness.server.take_notes())
    late, lost = (
        sum(getattr(book, what) for book, _ in harness.books) for what in ("late", "lost")
    )
    return ScheduleCounts(joined, late, lost)


def main() -> None:
    """Plays as many schedules as are asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    seeds = range(options.seed, options.seed + options.schedules)
    sys.stdout.write(f"{len(seeds)} schedules: {sum(map(check, seeds), ScheduleCounts())}\n")


if __name__ == "__main__":
    main()
