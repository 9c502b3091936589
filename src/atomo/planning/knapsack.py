"""Multiple-choice knapsack: one option for each item, of least time, within an error budget.

Items are taken in one after another, and the search keeps the Pareto frontier of (error, time) of
the options chosen so far. A state goes if even the lower bound of the remaining items' time cannot
make it win: the linear relaxation, which may take a part of one option and a part of the next
(Sinha and Zoltners, "The multiple-choice knapsack problem", Operations Research, 1979). A greedy
choice along the same relaxation gives the first known solution.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

__all__ = ["cheapest"]

Floats = NDArray[np.float64]
CLOSE: Final = 1e-3  # relative; times are measured less accurately than this
ROUNDING: Final = 1e-12


def cheapest(times: Floats, errors: Floats, budget: float, close: float = CLOSE) -> tuple[int, ...]:
    """Returns the option of each item.

    Args:
        times: [items, options] from 0.
        errors: [items, options] from 0.
        budget: limit of the sum of the chosen options' errors.
        close: the search only looks for choices that save at least this share of the total time.

    Returns:
        For each item the number of its option. If even the options of the least errors exceed the
        budget, these options.
    """
    room = budget * (1 + ROUNDING) - float(errors.min(axis=1).sum())
    hulls = [hull(*rows) for rows in zip(times, errors, strict=True)]
    if room <= 0:
        return tuple(options[0] for options in hulls)
    lower_bounds = [
        LowerBound.of(times, errors, hulls[start:], start) for start in range(len(hulls) + 1)
    ]
    chosen = lower_bounds[0].greedy([options[0] for options in hulls], room)
    greedy_time = float(times[np.arange(len(times)), chosen].sum())
    return search(times, errors, lower_bounds, room, greedy_time * (1 - close)) or tuple(chosen)


def hull(times: Floats, errors: Floats) -> list[int]:
    """Returns the options on the lower convex hull, from the least error to the least time."""
    vertices: list[int] = []
    for option in map(int, np.lexsort((times, errors))):
        if vertices and times[option] >= times[vertices[-1]]:
            continue
        while len(vertices) > 1 and gain(times, errors, vertices[-2], vertices[-1]) <= gain(
            times, errors, vertices[-1], option
        ):
            vertices.pop()
        vertices.append(option)
    return vertices


def gain(times: Floats, errors: Floats, before: int, after: int) -> float:
    """Returns the time saved for each unit of error."""
    return float((times[before] - times[after]) / max(errors[after] - errors[before], 1e-300))


@final
@dataclass(frozen=True)
class LowerBound:
    """Linear relaxation of the last items: the largest saving of time within an error budget."""

    time: float
    """Time at the least error."""
    rooms: Floats
    saved: Floats
    """Time saved with each of `rooms` above the least error; linear between them."""
    steps: tuple[tuple[int, int, float], ...]
    """Items, options and errors, sorted by the time saved for each unit of error."""

    @staticmethod
    def of(times: Floats, errors: Floats, hulls: list[list[int]], start: int) -> LowerBound:
        """Builds the bound of the items start, start+1, ..., which have these hulls."""
        rows = range(start, start + len(hulls))
        steps = [
            (gain(times[i], errors[i], a, b), i, b, float(errors[i, b] - errors[i, a]),
             float(times[i, a] - times[i, b]))
            for i, options in zip(rows, hulls, strict=True)
            for a, b in pairwise(options)
        ]  # fmt: skip
        steps.sort(key=lambda step: -step[0])
        firsts = [(i, options[0]) for i, options in zip(rows, hulls, strict=True)]
        return LowerBound(
            float(sum(times[at] for at in firsts)),
            np.cumsum([0.0, *(step[3] for step in steps)]),
            np.cumsum([0.0, *(step[4] for step in steps)]),
            tuple((step[1], step[2], step[3]) for step in steps),
        )

    def least_times(self, rooms: Floats) -> Floats:
        """Returns lower bounds of the items' time, with each of these rooms above their least
        error.
        """
        bounds: Floats = self.time - np.interp(rooms, self.rooms, self.saved)
        return bounds

    def greedy(self, chosen: list[int], room: float) -> list[int]:
        """Returns a choice within the budget: steps that no longer fit are left out."""
        stopped: set[int] = set()
        for item, option, error in self.steps:
            if error > room:
                stopped.add(item)
            elif item not in stopped:
                chosen[item], room = option, room - error
        return chosen


def search(
    times: Floats, errors: Floats, lower_bounds: list[LowerBound], room: float, limit: float
) -> tuple[int, ...]:
    """Returns the choice of least time if its time is less than `limit`; else an empty tuple."""
    above = errors - errors.min(axis=1, keepdims=True)
    spent: Floats = np.zeros(1)
    used: Floats = np.zeros(1)
    path: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
    for item in range(len(times)):
        used_then: Floats = (used[:, None] + above[item]).ravel()
        spent_then: Floats = (spent[:, None] + times[item]).ravel()
        survivors = pareto_states(used_then, spent_then, lower_bounds[item + 1], room, limit)
        if not len(survivors):
            return ()
        options = times.shape[1]
        path.append((survivors // options, survivors % options))
        used, spent = used_then[survivors], spent_then[survivors]
    return trace_back(path, int(spent.argmin()))


def pareto_states(
    used: NDArray[Any], spent: NDArray[Any], bound: LowerBound, room: float, limit: float
) -> NDArray[np.int64]:
    """Returns the states that may lead to a time below `limit`.

    Each of these states is faster than all states of less error.
    """
    # With more precise types the verdict of mypy depends on its cache.
    promised: NDArray[Any] = spent + bound.least_times(room - used)
    within = np.flatnonzero((used <= room) & (promised < limit))
    order = within[np.lexsort((spent[within], used[within]))]
    best = np.minimum.accumulate(spent[order])
    survivors: NDArray[np.int64] = order[
        np.concatenate([[True], best[1:] < best[:-1]])[: len(order)]
    ]
    return survivors


def trace_back(path: list[tuple[NDArray[np.int64], NDArray[np.int64]]], at: int) -> tuple[int, ...]:
    """Returns the options that lead to a state of all items."""
    chosen: list[int] = []
    for before, option in reversed(path):
        chosen.append(int(option[at]))
        at = int(before[at])
    return tuple(reversed(chosen))
