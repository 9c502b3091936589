"""What became of plans that were tried in real steps (`rehearsal.py`)."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from atomo.planning.comparison import MIN_GAIN

__all__ = ["Trial", "Turns", "expected", "listed", "median_of", "winner_first"]

Turns = list[list[float]]
"""Of one plan: seconds of the steps of each of its turns."""


@final
@dataclass(frozen=True)
class Trial:
    """What became of a plan."""

    name: str
    predicted_s: float
    taken_s: float
    """The median of its steps."""

    @staticmethod
    def read(values: Any) -> "Trial":
        """The inverse of `asdict`, of what went through JSON.

        Raises:
            KeyError, TypeError, ValueError: it is none.
        """
        times = float(values["predicted_s"]), float(values["taken_s"])
        return Trial(str(values["name"]), *times)


def winner_first(plans: Sequence[tuple[str, float]], turns: Sequence[Turns]) -> tuple[Trial, ...]:
    """What became of plans, the one to take first, and then in their order; of none, none.

    It is the fastest of those that had most turns; but the first of all, unless that one gains
    enough on it, and was faster in most of the turns that they had side by side.

    Args:
        plans: the name of each, and its prediction.
        turns: of each.
    """
    trials = [
        Trial(name, predicted_s, median_of(found))
        for (name, predicted_s), found in zip(plans, turns, strict=True)
    ]
    if not trials:
        return ()
    most = max(map(len, turns))
    last = [at for at, found in enumerate(turns) if len(found) == most]
    best = min(last, key=lambda at: trials[at].taken_s)
    gains = trials[best].taken_s * MIN_GAIN < trials[0].taken_s
    best = best if gains and wins(turns[best], turns[0]) else 0
    return (trials[best], *trials[:best], *trials[best + 1 :])


def median_of(turns: Turns) -> float:
    """Of all steps; 0 of none."""
    return statistics.median(found) if (found := [one for turn in turns for one in turn]) else 0.0


def wins(turns: Turns, others: Turns) -> bool:
    """Whether steps were shorter in two of three turns, or more."""
    faster = [
        median_of([one]) < median_of([other]) for one, other in zip(turns, others, strict=True)
    ]
    return 3 * sum(faster) >= 2 * len(faster)


def expected(trials: Sequence[Trial], predicted_s: float) -> float:
    """What a step by a plan will take."""
    return trials[0].taken_s if trials else predicted_s


def listed(trials: Sequence[Trial]) -> str:
    """Part of a line; of none, nothing."""
    if not trials:
        return ""
    first, *others = trials
    beside = ", ".join(f"{one.name} {1e3 * one.taken_s:.1f}" for one in others)
    return f"; {1e3 * first.taken_s:.1f} in trial steps" + (f" ({beside})" if beside else "")
