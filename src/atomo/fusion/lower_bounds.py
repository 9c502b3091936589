"""Lower bounds on the time that the tensors behind a prefix take, for each number of messages.

Everything in a given partition of these tensors is decoded at

    max(E + a, S + b, D + c, delay + r)

where E, S and D are the times at which encoder, link and decoder are free. a, b, c and r are the
longest paths through the flow shop that start at the encoder, the link, the decoder, and at a
gradient that becomes ready. Each is minimised by itself, which keeps the maximum a lower bound. The
minimum is taken for each number of messages: more messages cost more and overlap better, so that a
minimum over all numbers would be a bound that no partition comes near.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from atomo.kernels.jit import jit

__all__ = ["least_rests", "promised"]

Table = NDArray[np.float64]
MOST_GROUPS: Final = 64  # that are told apart; the last stands for so many or more


@jit
def least_rests(totals: Table, whole: Table, message: Table, slowing: float) -> NDArray[np.float64]:
    """Computes a, b, c and r of the tensors from each index on, [n + 1, groups + 1, 4]; infinite
    where no partition exists.

    The arguments are those of `pareto_states.extended`.
    """
    tensors = len(whole)
    groups = min(tensors, MOST_GROUPS)
    rests = np.full((tensors + 1, groups + 1, 4), np.inf)
    rests[tensors, 0, :3], rests[tensors, 0, 3] = 0.0, -np.inf
    for start in range(tensors - 1, -1, -1):
        for stop in range(start + 1, tensors + 1):
            encode, send, decode = message + totals[stop] - totals[start]
            for group in range(1, min(groups, tensors - start) + 1):
                for behind in range(group - 1, group + (group == groups)):
                    if rests[stop, behind, 2] == np.inf:
                        continue
                    c = decode + rests[stop, behind, 2]
                    b = send + max(rests[stop, behind, 1], c)
                    a = encode + max(rests[stop, behind, 0], b)
                    r = max(rests[stop, behind, 3] + slowing * encode, whole[stop - 1] + a)
                    rests[start, group, 0] = min(rests[start, group, 0], a)
                    rests[start, group, 1] = min(rests[start, group, 1], b)
                    rests[start, group, 2] = min(rests[start, group, 2], c)
                    rests[start, group, 3] = min(rests[start, group, 3], r)
    return rests


@jit
def promised(states: Table, rests: Table) -> NDArray[np.float64]:
    """Returns a lower bound on the completion time from each state [m, 4 or more].

    Args:
        states: of one prefix.
        rests: of the tensors behind it, [groups + 1, 4].
    """
    ends = np.full(len(states), np.inf)
    for row in range(len(states)):
        for group in range(len(rests)):
            end = states[row, 0] + rests[group, 0]
            for machine in range(1, 4):
                end = max(end, states[row, machine] + rests[group, machine])
            ends[row] = min(ends[row], end)
    return ends
