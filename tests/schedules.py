"""Random schedules of workers and spares that join, leave, and are late, over the in-process
transport. What the living computed must be in steps or in their memories, each gradient and each
image must count once, and all who counted in a step must have shared it alike.

    python tests/schedules.py --schedules 5000 --seed 0

Of a seed the schedule is always the same; threads may take turns otherwise.
"""

import argparse
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass

from mortal import Mortal
from support import together
from troupe import Troupe, kept

__all__ = ["Came", "check", "scheduled", "working"]


@dataclass(frozen=True)
class Came:
    """What schedules came to."""

    joined: int = 0
    late: int = 0
    lost: int = 0

    def __add__(self, other: "Came") -> "Came":
        return Came(self.joined + other.joined, self.late + other.late, self.lost + other.lost)


def working(troupe: Troupe, *workers: int) -> list[Callable[[], object]]:
    """Returns the bodies of these workers."""
    return [lambda w=w: troupe.work(w) for w in workers]  # type: ignore[misc]


def scheduled(seed: int) -> tuple[Troupe, int]:
    """Returns a troupe of whose workers and spares some die, each after so many messages, and some
    are late; and how many steps it takes.
    """
    dice = random.Random(seed)
    workers, spares, steps = dice.randint(1, 4), dice.randint(1, 3), dice.randint(2, 6)
    ranks = range(1, 1 + workers + spares)
    slow = [(rank, step) for rank in ranks for step in range(1, steps) if dice.random() < 0.3]
    troupe = Troupe(
        workers,
        needed=dice.randint(1, workers),
        relays=dice.random() < 0.5,
        spares=spares,
        lends=dice.random() < 0.5,
        lags=slow,
    )
    for rank in dice.sample(ranks, dice.randint(1, len(ranks) - 1)):
        breaths = dice.randint(0, 6 * steps)
        troupe.ends[rank - 1] = Mortal(troupe.transports[rank], breaths)
    return troupe, steps


def check(seed: int) -> Came:
    """Plays a schedule to its end, and asserts that it went as it must."""
    troupe, steps = scheduled(seed)

    def lead() -> None:
        for step in range(1, steps + 1):
            counted = troupe.step(step)
            sharing = {troupe.shared[step, worker] for worker in counted}
            assert len(sharing) == 1, (seed, step, sharing)
            assert {*counted} <= {*sharing.pop()}, (seed, step, counted)
            if step % 3 == 0:
                troupe.server.save()
        troupe.server.save()  # from here on nobody is told of anything late
        troupe.end()

    ranks = range(1, len(troupe.ends) + 1)
    together([lead, *working(troupe, *ranks)], lambda: troupe.transports[0].abort(1))
    return judged(troupe, seed)


def judged(troupe: Troupe, seed: int) -> Came:
    """What a troupe came to, once its books are seen to be right."""
    assert troupe.balanced(), (seed, troupe.books, troupe.image_books)
    assert troupe.books[-1][0].under_way == troupe.image_books[-1][0].under_way == 0, seed
    for worker in troupe.server.workers:
        waits = float(kept(troupe.memories[worker - 1])[worker])
        assert float(troupe.given[worker]) + waits == troupe.computed[worker - 1], (seed, worker)
    joined = sum("takes part" in note for note in troupe.server.take_notes())
    late, lost = (sum(getattr(book, what) for book, _ in troupe.books) for what in ("late", "lost"))
    return Came(joined, late, lost)


def main() -> None:
    """Plays as many schedules as are asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    seeds = range(options.seed, options.seed + options.schedules)
    sys.stdout.write(f"{len(seeds)} schedules: {sum(map(check, seeds), Came())}\n")


if __name__ == "__main__":
    main()
