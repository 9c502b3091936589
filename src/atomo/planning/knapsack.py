"""One option for each of several items, of least time, whose errors together stay within a budget.

A multiple-choice knapsack. Items are taken in one after another, and of the ways to choose for the
first of them the Pareto frontier of (error, time) is kept. What no rest could make good is dropped:
the rest's least time is bounded from below by its linear relaxation, which may take a part of one
option and a part of the next (Sinha and Zoltners, "The multiple-choice knapsack problem",
Operations Research, 1979); a greedy choice along the same relaxation says what there is to beat.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

__all__ = ["cheapest"]

Floats = NDArray[np.float64]
CLOSE: Final = 1e-3  # times are measured, and never more closely than this
ROUNDING: Final = 1e-12


def cheapest(times: Floats, errors: Floats, budget: float, close: float = CLOSE) -> tuple[int, ...]:
    """The option of each item.

    Args:
        times: [items, options] from 0.
        errors: [items, options] from 0.
        budget: what the errors of the chosen may add up to.
        close: what share of all time a better choice must gain to be looked for; 0: any.

    Returns:
        For each item the number of its option. Where not even those of the least errors keep the
        budget, those.
    """
    room = budget * (1 + ROUNDING) - float(errors.min(axis=1).sum())
    hulls = [hull(*one) for one in zip(times, errors, strict=True)]
    if room <= 0:
        return tuple(one[0] for one in hulls)
    rests = [Rest.of(times, errors, hulls[start:], start) for start in range(len(hulls) + 1)]
    chosen = rests[0].greedy([one[0] for one in hulls], room)
    known = float(times[np.arange(len(times)), chosen].sum())
    return searched(times, errors, rests, room, known * (1 - close)) or tuple(chosen)


def hull(times: Floats, errors: Floats) -> list[int]:
    """The options on the lower convex hull, from the least error to the least time."""
    kept: list[int] = []
    for one in map(int, np.lexsort((times, errors))):
        if kept and times[one] >= times[kept[-1]]:
            continue
        while len(kept) > 1 and gain(times, errors, kept[-2], kept[-1]) <= gain(
            times, errors, kept[-1], one
        ):
            kept.pop()
        kept.append(one)
    return kept


def gain(times: Floats, errors: Floats, before: int, after: int) -> float:
    """Time saved for each unit of error."""
    return float((times[before] - times[after]) / max(errors[after] - errors[before], 1e-300))


@final
@dataclass(frozen=True)
class Rest:
    """The linear relaxation of the items from one on: what a budget for them can save at most."""

    least_error: float
    time: float
    """At the least error."""
    rooms: Floats
    saved: Floats
    """With each of `rooms` above the least error; between them it is linear."""
    steps: tuple[tuple[int, int, float], ...]
    """Items, options and errors, by what they gain for their error."""

    @staticmethod
    def of(times: Floats, errors: Floats, hulls: list[list[int]], start: int) -> Rest:
        """Of the items start, start+1, ..., which have these hulls."""
        rows = range(start, start + len(hulls))
        steps = [
            (gain(times[i], errors[i], a, b), i, b, float(errors[i, b] - errors[i, a]),
             float(times[i, a] - times[i, b]))
            for i, one in zip(rows, hulls, strict=True)
            for a, b in pairwise(one)
        ]  # fmt: skip
        steps.sort(key=lambda step: -step[0])
        firsts = [(i, one[0]) for i, one in zip(rows, hulls, strict=True)]
        return Rest(
            float(sum(errors[at] for at in firsts)),
            float(sum(times[at] for at in firsts)),
            np.cumsum([0.0, *(step[3] for step in steps)]),
            np.cumsum([0.0, *(step[4] for step in steps)]),
            tuple((step[1], step[2], step[3]) for step in steps),
        )

    def least_times(self, rooms: Floats) -> Floats:
        """Below what the rest takes, with each of these rooms above its least error."""
        bounds: Floats = self.time - np.interp(rooms, self.rooms, self.saved)
        return bounds

    def greedy(self, chosen: list[int], room: float) -> list[int]:
        """A choice that keeps the budget: steps that no longer fit are left out."""
        stopped: set[int] = set()
        for item, option, error in self.steps:
            if error > room:
                stopped.add(item)
            elif item not in stopped:
                chosen[item], room = option, room - error
        return chosen


def searched(
    times: Floats, errors: Floats, rests: list[Rest], room: float, known: float
) -> tuple[int, ...]:
    """The choice of least time, where one takes less than `known`; else nothing."""
    above = errors - errors.min(axis=1, keepdims=True)
    taken: Floats = np.zeros(1)
    used: Floats = np.zeros(1)
    path: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
    for item in range(len(times)):
        used_then: Floats = (used[:, None] + above[item]).ravel()
        taken_then: Floats = (taken[:, None] + times[item]).ravel()
        kept = undominated(used_then, taken_then, rests[item + 1], room, known)
        if not len(kept):
            return ()
        options = times.shape[1]
        path.append((kept // options, kept % options))
        used, taken = used_then[kept], taken_then[kept]
    return traced(path, int(taken.argmin()))


def undominated(
    used: NDArray[Any], taken: NDArray[Any], rest: Rest, room: float, known: float
) -> NDArray[np.int64]:
    """The states that may lead to less than `known`, each faster than all of less error."""
    # More precise types are refused by mypy, or not, with what it has cached.
    promised: NDArray[Any] = taken + rest.least_times(room - used)
    within = np.flatnonzero((used <= room) & (promised < known))
    order = within[np.lexsort((taken[within], used[within]))]
    best = np.minimum.accumulate(taken[order])
    kept: NDArray[np.int64] = order[np.concatenate([[True], best[1:] < best[:-1]])[: len(order)]]
    return kept


def traced(path: list[tuple[NDArray[np.int64], NDArray[np.int64]]], at: int) -> tuple[int, ...]:
    """The options on the way to a state of all items."""
    chosen: list[int] = []
    for before, option in reversed(path):
        chosen.append(int(option[at]))
        at = int(before[at])
    return tuple(reversed(chosen))
