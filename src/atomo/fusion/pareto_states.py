"""States of the flow shop after the first tensors are grouped, and the best ones with one group
more.

A state is when encoder, link and decoder are free, and by how much the backward pass is delayed. A
machine that is free before anything can reach it may as well be free only then: states that differ
in nothing else are the same, and of them one goes on.
"""

from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from atomo.kernels.jit import jit

__all__ = ["States", "extended"]

Table = NDArray[np.float64]
State = tuple[float, float, float, float]
"""Encoder, link and decoder free; delay of the backward pass."""
COLUMNS: Final = 6  # a state, and the tensors and the row of the state that it continues


@final
class States:
    """The states that go on of each prefix of 0, 1, 2, ... tensors, one after another."""

    def __init__(self, tensors: int) -> None:
        self.values = np.zeros((64, COLUMNS))
        self.offsets = np.zeros(tensors + 2, dtype=np.int64)
        self.offsets[1] = 1  # nothing is sent, and all machines are free
        self._prefixes = 1

    def add(self, found: Table) -> None:
        """Adds the states of the next prefix."""
        begin = self.offsets[self._prefixes]
        end = begin + len(found)
        while end > len(self.values):
            self.values = np.concatenate([self.values, np.zeros_like(self.values)])
        self.values[begin:end] = found
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
def extended(
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
    """States of the first `stop` tensors that none other is at least as good as in everything.

    Args:
        states: of all shorter prefixes, [m, 6].
        offsets: where those of each prefix begin.
        totals: of encoding, sending and decoding of the first 0, 1, 2, ... tensors.
        whole: when each gradient and all before it are there.
        message: what a message takes beside.
        slowing: as `Flow` has it.
        stop: from 1 to the number of tensors.
        least: what the tensors from `stop` on take at least after each number of a state.
        known: no state goes on from which all is decoded later.

    Returns:
        The states, and of each the tensors and the row of the state that it continues, [k, 6].
    """
    found = np.empty((64, COLUMNS))
    size = 0
    for start in range(stop - 1, -1, -1):  # short groups first: what beats others comes early
        encode, send, decode = message + totals[stop] - totals[start]
        for row in range(offsets[start], offsets[start + 1]):
            free = states[row, 0], states[row, 1], states[row, 2], states[row, 3]
            state = after(free, encode, send, decode, whole[stop - 1], slowing)
            state = awaiting(state, totals, whole, message, stop)
            if too_late(state, least, known) or beaten(found, size, state):
                continue
            size = without_worse(found, size, state)
            if size == len(found):
                found = np.concatenate((found, np.empty_like(found)))
            found[size, 0], found[size, 1], found[size, 2], found[size, 3] = state
            found[size, 4], found[size, 5] = start, row
            size += 1
    return found[:size].copy()


@jit
def after(
    state: State, encode: float, send: float, decode: float, ready: float, slowing: float
) -> State:
    """Returns the states after one more message, as `Flow.done` computes it."""
    encoded = max(state[0], ready + state[3]) + encode
    sent = max(state[1], encoded) + send
    return encoded, sent, max(state[2], sent) + decode, state[3] + slowing * encode


@jit
def awaiting(state: State, totals: Table, whole: Table, message: Table, stop: int) -> State:
    """Returns the earliest time at which each machine can take the next message; for all tensors,
    the end alone.

    That one has tensor `stop` at least, and is encoded when that is there.
    """
    if stop == len(whole):
        return 0.0, 0.0, state[2], 0.0
    encoder = max(state[0], whole[stop] + state[3])
    link = max(state[1], encoder + message[0] + totals[stop + 1, 0] - totals[stop, 0])
    decoder = max(state[2], link + message[1] + totals[stop + 1, 1] - totals[stop, 1])
    return encoder, link, decoder, state[3]


@jit
def too_late(state: State, least: Table, known: float) -> bool:
    """Returns True if even the best continuation ends after `known`."""
    late: bool = (
        state[0] + least[0] > known
        or state[1] + least[1] > known
        or state[2] + least[2] > known
        or state[3] + least[3] > known
    )
    return late


@jit
def beaten(found: Table, size: int, state: State) -> bool:
    """Returns True if one of the first `size` states is at least as good in everything; that state
    then moves ahead.
    """
    for row in range(size):
        if (
            found[row, 0] <= state[0]
            and found[row, 1] <= state[1]
            and found[row, 2] <= state[2]
            and found[row, 3] <= state[3]
        ):
            ahead = row // 2  # it will beat others as well
            for column in range(COLUMNS):
                moved = found[row, column]
                found[row, column] = found[ahead, column]
                found[ahead, column] = moved
            return True
    return False


@jit
def without_worse(found: Table, size: int, state: State) -> int:
    """Takes away those that the state is at least as good as; how many are left."""
    left = 0
    for row in range(size):
        if not (
            state[0] <= found[row, 0]
            and state[1] <= found[row, 1]
            and state[2] <= found[row, 2]
            and state[3] <= found[row, 3]
        ):
            if left < row:
                for column in range(COLUMNS):
                    found[left, column] = found[row, column]
            left += 1
    return left
