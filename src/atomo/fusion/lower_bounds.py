"""Lower bounds on the time of the tensors after a prefix, for each number of messages.

A given partition of these tensors is completely decoded at

    max(E + a, S + b, D + c, delay + r)

where E, S and D are the times at which encoder, link and decoder are free. a, b, c and r are the
longest paths through the flow problem that start at the encoder, the link, the decoder, and at a
gradient that becomes ready. Each is minimised by itself, which keeps the maximum a lower bound. The
minimum is taken for each number of messages: more messages cost more and overlap better, so that a
minimum over all numbers would be far below every partition.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from atomo.kernels.jit import jit

__all__ = ["completion_bounds", "remaining_times"]

Table = NDArray[np.float64]
MOST_GROUPS: Final = 64  # bounds with their own number; the last is for this many or more


@jit
def remaining_times(
    totals: Table, whole: Table, message: Table, slowing: float
) -> NDArray[np.float64]:
    """Computes a, b, c and r of the tensors from each index on, [n + 1, groups + 1, 4]; infinite
    where no partition exists.

    The arguments are those of `pareto_states.extended`.
    """
    tensors = len(whole)
    groups = min(tensors, MOST_GROUPS)
    remaining = np.full((tensors + 1, groups + 1, 4), np.inf)
    remaining[tensors, 0, :3], remaining[tensors, 0, 3] = 0.0, -np.inf
    for start in range(tensors - 1, -1, -1):
        for stop in range(start + 1, tensors + 1):
            encode, send, decode = message + totals[stop] - totals[start]
            for group in range(1, min(groups, tensors - start) + 1):
                for later in range(group - 1, group + (group == groups)):
                    if remaining[stop, later, 2] == np.inf:
                        continue
                    c = decode + remaining[stop, later, 2]
                    b = send + max(remaining[stop, later, 1], c)
                    a = encode + max(remaining[stop, later, 0], b)
                    r = max(remaining[stop, later, 3] + slowing * encode, whole[stop - 1] + a)
                    remaining[start, group, 0] = min(remaining[start, group, 0], a)
                    remaining[start, group, 1] = min(remaining[start, group, 1], b)
                    remaining[start, group, 2] = min(remaining[start, group, 2], c)
                    remaining[start, group, 3] = min(remaining[start, group, 3], r)
    return remaining


@jit
def completion_bounds(states: Table, remaining: Table) -> NDArray[np.float64]:
    """Returns a lower bound on the completion time from each state [m, 4 or more].

    Args:
        states: of one prefix.
        remaining: of the tensors after it, [groups + 1, 4].
    """
    ends = np.full(len(states), np.inf)
    for row in range(len(states)):
        for group in range(len(remaining)):
            end = states[row, 0] + remaining[group, 0]
            for machine in range(1, 4):
                end = max(end, states[row, machine] + remaining[group, machine])
            ends[row] = min(ends[row], end)
    return ends
