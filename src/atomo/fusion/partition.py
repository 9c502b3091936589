"""The partition of a model's tensors into messages by which an exchange is done first.

An exact dynamic programme. Two ways to group the first j tensors cannot be compared by one number:
one may leave the encoder free earlier, the other the link. So each j keeps the Pareto frontier of
(encoder free, link free, decoder free, delay of the backward pass). Two things keep it short. What
a machine is free for earlier than the next message can possibly reach it makes no difference, so it
counts as free from then (`states.py`). And no state goes on that even the best of all rests would
bring later than a partition that is known (`rests.py`); a first pass, which keeps but a few states
of each j, finds one that is hard to beat, and often one that is proved to be the best.

Where more than `LIMIT` states of one j are left, those that promise most go on, so that the time is
bounded; the partition found may then not quite be the best (benchmarks/planning.py says by how much
at most). Up to twelve tensors never have so many.
"""

from dataclasses import dataclass
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from atomo.fusion.flow import Flow
from atomo.fusion.lower_bounds import least_rests, promised
from atomo.fusion.pareto_states import States, extended
from atomo.grouping import Grouping

__all__ = ["LIMIT", "best_partition", "bound"]

FEW: Final = 8
LIMIT: Final = 64  # states of a prefix; more => slower, and surer where messages are hard to place
ROUNDING: Final = 1 + 1e-9


@final
@dataclass(frozen=True)
class Shop:
    """A flow as arrays."""

    totals: NDArray[np.float64]  # [n + 1, 3]
    whole: NDArray[np.float64]  # [n]
    message: NDArray[np.float64]  # [3]
    slowing: float
    rests: NDArray[np.float64]  # [n + 1, groups + 1, 4]

    @staticmethod
    def of(flow: Flow) -> "Shop":
        totals, whole, message = (np.array(x) for x in (flow.totals, flow.whole, flow.message))
        rests = least_rests(totals, whole, message, flow.slowing)
        return Shop(totals, whole, message, flow.slowing, rests)

    @property
    def bound(self) -> float:
        """A lower bound on the completion time."""
        return float(promised(np.zeros((1, 4)), self.rests[0])[0])


def best_partition(flow: Flow) -> tuple[int, ...]:
    """Finds the cuts (as `Flow.done` takes them) with the earliest completion time."""
    shop, sizes = Shop.of(flow), range(len(flow.each))  # which none of these ways looks at
    ways = [Grouping(way).cuts(sizes) for way in ("layer", "one")]
    best = min(ways, key=flow.done)
    for most in (FEW, LIMIT):
        if flow.done(best) <= shop.bound * ROUNDING:
            break
        found = grown(shop, flow.done(best) * ROUNDING, most)
        best = min(best, found, key=flow.done) if found else best
    return best


def bound(flow: Flow) -> float:
    """Seconds before which no partition has everything decoded."""
    return Shop.of(flow).bound


def grown(shop: Shop, known: float, most: int) -> tuple[int, ...]:
    """Searches with at most `most` promising states for each prefix, and returns the best cuts.

    Empty where none is done by `known`.
    """
    tensors = len(shop.whole)
    kept = States(tensors)
    for stop in range(1, tensors + 1):
        found = extended(
            kept.values, kept.offsets, shop.totals, shop.whole, shop.message, shop.slowing,
            stop, shop.rests[stop].min(axis=0), known,
        )  # fmt: skip
        ends = promised(found, shop.rests[stop])
        within = np.flatnonzero(ends <= known)
        if len(within) > most:
            ties = found[within, :3].sum(axis=1)
            within = within[np.lexsort((ties, ends[within]))[:most]]
        kept.add(found[within])
    return kept.traced()
