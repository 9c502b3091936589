"""The partition of a model's tensors into messages with the earliest completion of the exchange.

An exact dynamic programme. Two groupings of the first j tensors cannot be compared by one number:
the first may leave the encoder free earlier, the second the link. So each j keeps the Pareto
frontier of (encoder free, link free, decoder free, delay of the backward pass). Two rules keep the
frontier short. A machine that is free before the next message can reach it counts as free from that
moment only (`pareto_states.py`). And a state is dropped if a lower bound on its completion time is
above the time of a known partition (`lower_bounds.py`). A first pass, which keeps only a few states
of each j, finds a good partition, and often proves that it is the best.

If more than `MAX_STATES` states of one j are left, those with the lowest bounds are kept, so that
the time is bounded; the partition may then be slightly worse than the best (benchmarks/planning.py
measures by how much at most). Up to twelve tensors never have so many states.
"""

from dataclasses import dataclass
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from atomo.fusion.flow import Flow
from atomo.fusion.lower_bounds import completion_bounds, remaining_times
from atomo.fusion.pareto_states import ParetoStates, extend_states
from atomo.options.grouping import Grouping

__all__ = ["MAX_STATES", "best_partition", "bound"]

FEW_STATES: Final = 8  # of a prefix, in the first pass
MAX_STATES: Final = 64  # of a prefix; more => slower, and better where messages are hard to place
ROUNDING: Final = 1 + 1e-9


@final
@dataclass(frozen=True)
class GroupingProblem:
    """A flow as arrays, and lower bounds on the time of the tensors after each prefix."""

    totals: NDArray[np.float64]  # [n + 1, 3]
    whole: NDArray[np.float64]  # [n]
    message: NDArray[np.float64]  # [3]
    slowing: float
    remaining: NDArray[np.float64]  # [n + 1, groups + 1, 4]

    @staticmethod
    def of(flow: Flow) -> "GroupingProblem":
        totals, whole, message = (np.array(x) for x in (flow.totals, flow.whole, flow.message))
        remaining = remaining_times(totals, whole, message, flow.slowing)
        return GroupingProblem(totals, whole, message, flow.slowing, remaining)

    @property
    def bound(self) -> float:
        """A lower bound on the completion time."""
        return float(completion_bounds(np.zeros((1, 4)), self.remaining[0])[0])


def best_partition(flow: Flow) -> tuple[int, ...]:
    """Finds the cuts (as `Flow.done` takes them) with the earliest completion time."""
    problem = GroupingProblem.of(flow)
    sizes = range(len(flow.each))  # neither grouping reads the sizes
    best = min((Grouping(name).cuts(sizes) for name in ("layer", "one")), key=flow.done)
    for max_states in (FEW_STATES, MAX_STATES):
        if flow.done(best) <= problem.bound * ROUNDING:
            break
        cuts = search_cuts(problem, flow.done(best) * ROUNDING, max_states)
        best = min(best, cuts, key=flow.done) if cuts else best
    return best


def bound(flow: Flow) -> float:
    """Returns a lower bound on the completion time of every partition, in seconds."""
    return GroupingProblem.of(flow).bound


def search_cuts(problem: GroupingProblem, known_s: float, max_states: int) -> tuple[int, ...]:
    """Searches with at most `max_states` states for each prefix, those with the lowest bounds.

    Returns:
        The best cuts; empty if no cuts complete by `known_s`.
    """
    tensors = len(problem.whole)
    frontier = ParetoStates(tensors)
    for stop in range(1, tensors + 1):
        states = extend_states(
            frontier.values, frontier.offsets, problem.totals, problem.whole, problem.message,
            problem.slowing, stop, problem.remaining[stop].min(axis=0), known_s,
        )  # fmt: skip
        ends = completion_bounds(states, problem.remaining[stop])
        within = np.flatnonzero(ends <= known_s)
        if len(within) > max_states:
            ties = states[within, :3].sum(axis=1)
            within = within[np.lexsort((ties, ends[within]))[:max_states]]
        frontier.add(states[within])
    return frontier.traced()
