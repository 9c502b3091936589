"""Pareto-optimal states of the flow shop after the first tensors are grouped.

A state holds the times at which encoder, link and decoder are free, and the delay of the backward
pass. A machine that is free before the next message can reach it counts as free from that moment
only: states that differ only in this are then equal, and a single one is kept.
"""

from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from atomo.kernels.jit import jit

__all__ = ["ParetoStates", "extend_states"]

Table = NDArray[np.float64]
State = tuple[float, float, float, float]
"""Encoder, link and decoder free; delay of the backward pass."""
COLUMNS: Final = 6  # a state, and the tensors and the row of the state that it continues


@final
class ParetoStates:
    """The kept states of each prefix of 0, 1, 2, ... tensors, in the order of the prefixes."""

    def __init__(self, tensors: int) -> None:
        self.values = np.zeros((64, COLUMNS))
        self.offsets = np.zeros(tensors + 2, dtype=np.int64)
        self.offsets[1] = 1  # nothing is sent, and all machines are free
        self._prefixes = 1

    def add(self, states: Table) -> None:
        """Adds the states of the next prefix."""
        begin = self.offsets[self._prefixes]
        end = begin + len(states)
        while end > len(self.values):
            self.values = np.concatenate([self.values, np.zeros_like(self.values)])
        self.values[begin:end] = states
        self._prefixes += 1
        self.offsets[self._prefixes] = end

    def traced(self) -> tuple[int, ...]:
        """Returns the cuts of the best state of all tensors; empty without such a state."""
        stop = self._prefixes - 1
        begin, end = self.offsets[stop], self.offsets[stop + 1]
        if begin == end:
            return ()
        index = int(begin + self.values[begin:end, 2].argmin())
        cuts: list[int] = []
        while stop:
            cuts.append(stop)
            stop, index = (int(number) for number in self.values[index, 4:])
        return tuple(reversed(cuts))


@jit
def extend_states(
    states: Table,
    offsets: NDArray[np.int64],
    totals: Table,
    whole: Table,
    message: Table,
    slowing: float,
    stop: int,
    bounds: Table,
    known_s: float,
) -> Table:
    """Computes the Pareto-optimal states of the first `stop` tensors.

    Args:
        states: of all shorter prefixes, [m, 6].
        offsets: the first row of each prefix.
        totals: of encoding, sending and decoding of the first 0, 1, 2, ... tensors.
        whole: the time at which each gradient and all before it are ready.
        message: the fixed cost of a message, for encoding, sending and decoding.
        slowing: as in `Flow`.
        stop: from 1 to the number of tensors.
        bounds: lower bounds on the time of the tensors from `stop` on, one for each column.
        known_s: the completion time of a known partition; states that must end later are dropped.

    Returns:
        The states, with the number of tensors and the row of the state that each continues, [k, 6].
    """
    frontier = np.empty((64, COLUMNS))
    size = 0
    for start in range(stop - 1, -1, -1):  # short groups first: their states dominate most others
        encode, send, decode = message + totals[stop] - totals[start]
        for row in range(offsets[start], offsets[start + 1]):
            free = states[row, 0], states[row, 1], states[row, 2], states[row, 3]
            state = append_message(free, encode, send, decode, whole[stop - 1], slowing)
            state = earliest_starts(state, totals, whole, message, stop)
            if is_too_late(state, bounds, known_s) or is_dominated(frontier, size, state):
                continue
            size = remove_dominated(frontier, size, state)
            if size == len(frontier):
                frontier = np.concatenate((frontier, np.empty_like(frontier)))
            frontier[size, 0], frontier[size, 1], frontier[size, 2], frontier[size, 3] = state
            frontier[size, 4], frontier[size, 5] = start, row
            size += 1
    return frontier[:size].copy()


@jit
def append_message(
    state: State, encode: float, send: float, decode: float, ready: float, slowing: float
) -> State:
    """Returns the state after one more message, as `Flow.done` computes it."""
    encoded = max(state[0], ready + state[3]) + encode
    sent = max(state[1], encoded) + send
    return encoded, sent, max(state[2], sent) + decode, state[3] + slowing * encode


@jit
def earliest_starts(state: State, totals: Table, whole: Table, message: Table, stop: int) -> State:
    """Returns the earliest time at which each machine can take the next message; after the last
    tensor, the completion time alone.

    The next message has at least tensor `stop`, and is encoded once that gradient is ready.
    """
    if stop == len(whole):
        return 0.0, 0.0, state[2], 0.0
    encoder = max(state[0], whole[stop] + state[3])
    link = max(state[1], encoder + message[0] + totals[stop + 1, 0] - totals[stop, 0])
    decoder = max(state[2], link + message[1] + totals[stop + 1, 1] - totals[stop, 1])
    return encoder, link, decoder, state[3]


@jit
def is_too_late(state: State, bounds: Table, known_s: float) -> bool:
    """Returns True if even the best continuation ends after `known_s`."""
    late: bool = (
        state[0] + bounds[0] > known_s
        or state[1] + bounds[1] > known_s
        or state[2] + bounds[2] > known_s
        or state[3] + bounds[3] > known_s
    )
    return late


@jit
def is_dominated(frontier: Table, size: int, state: State) -> bool:
    """Returns True if one of the first `size` states is at least as good in everything; that state
    then moves ahead.
    """
    for row in range(size):
        if (
            frontier[row, 0] <= state[0]
            and frontier[row, 1] <= state[1]
            and frontier[row, 2] <= state[2]
            and frontier[row, 3] <= state[3]
        ):
            ahead = row // 2  # it is likely to dominate others too
            for column in range(COLUMNS):
                moved = frontier[row, column]
                frontier[row, column] = frontier[ahead, column]
                frontier[ahead, column] = moved
            return True
    return False


@jit
def remove_dominated(frontier: Table, size: int, state: State) -> int:
    """Removes the states that `state` dominates, and returns the number of states left."""
    count = 0
    for row in range(size):
        if not (
            state[0] <= frontier[row, 0]
            and state[1] <= frontier[row, 1]
            and state[2] <= frontier[row, 2]
            and state[3] <= frontier[row, 3]
        ):
            if count < row:
                for column in range(COLUMNS):
                    frontier[count, column] = frontier[row, column]
            count += 1
    return count
