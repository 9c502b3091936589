"""What became of plans that were tried in real steps (`rehearsal.py`)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from atomo.planning.comparison import WORTH

__all__ = ["Trial", "best_of", "expected", "listed", "winner_first"]


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


def best_of(trials: Sequence[Trial]) -> int:
    """The number of the plan to take: the first, which was predicted to be the best, unless another
    one gains enough on it.
    """
    first = trials[0].taken_s
    best = min(range(len(trials)), key=lambda at: trials[at].taken_s)
    return best if trials[best].taken_s * WORTH < first else 0


def winner_first(trials: Sequence[Trial]) -> tuple[Trial, ...]:
    """The one to take, and the others as they were; of none, none."""
    if not trials:
        return ()
    best = best_of(trials)
    return (trials[best], *trials[:best], *trials[best + 1 :])


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
