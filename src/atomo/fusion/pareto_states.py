"""Pareto-optimal states of the flow shop after the first tensors are grouped.

A state holds the times at which encoder, link and decoder are free, and the delay of the backward
pass. A machine that is free before the next message can reach it counts as free from that moment
only: states that differ in nothing else are then equal, and one of them is kept.
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
    least: Table,
    known: float,
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
        least: lower bounds on the time of the tensors from `stop` on, one for each column.
        known: the completion time of a known partition; states that must end later are dropped.

    Returns:
        The states, with the number of tensors and the row of the state that each continues, [k, 6].
    """
    kept = np.empty((64, COLUMNS))
    size = 0
    for start in range(stop - 1, -1, -1):  # short groups first: their states dominate most others
        encode, send, decode = message + totals[stop] - totals[start]
        for row in range(offsets[start], offsets[start + 1]):
            free = states[row, 0], states[row, 1], states[row, 2], states[row, 3]
            state = append_message(free, encode, send, decode, whole[stop - 1], slowing)
            state = earliest_starts(state, totals, whole, message, stop)
            if is_too_late(state, least, known) or is_dominated(kept, size, state):
                continue
            size = remove_dominated(kept, size, state)
            if size == len(kept):
                kept = np.concatenate((kept, np.empty_like(kept)))
            kept[size, 0], kept[size, 1], kept[size, 2], kept[size, 3] = state
            kept[size, 4], kept[size, 5] = start, row
            size += 1
    return kept[:size].copy()


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
def is_too_late(state: State, least: Table, known: float) -> bool:
    """Returns True if even the best continuation ends after `known`."""
    late: bool = (
        state[0] + least[0] > known
        or state[1] + least[1] > known
        or state[2] + least[2] > known
        or state[3] + least[3] > known
    )
    return late


@jit
def is_dominated(kept: Table, size: int, state: State) -> bool:
    """Returns True if one of the first `size` states is at least as good in everything; that state
    then moves ahead.
    """
    for row in range(size):
        if (
            kept[row, 0] <= state[0]
            and kept[row, 1] <= state[1]
            and kept[row, 2] <= state[2]
            and kept[row, 3] <= state[3]
        ):
            ahead = row // 2  # it is likely to dominate others too
            for column in range(COLUMNS):
                moved = kept[row, column]
                kept[row, column] = kept[ahead, column]
                kept[ahead, column] = moved
            return True
    return False


@jit
def remove_dominated(kept: Table, size: int, state: State) -> int:
    """Removes the states that `state` dominates, and returns the number of states left."""
    left = 0
    for row in range(size):
        if not (
            state[0] <= kept[row, 0]
            and state[1] <= kept[row, 1]
            and state[2] <= kept[row, 2]
            and state[3] <= kept[row, 3]
        ):
            if left < row:
                for column in range(COLUMNS):
                    kept[left, column] = kept[row, column]
            left += 1
    return left
