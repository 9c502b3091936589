"""Schedules of the learning rate: each a factor that is a pure function of the step.

So a run that continues after a stop, and every rank that repeats the steps of others, has the same
bits without a word about it. Values are those of PyTorch's schedulers of the same names, stepped
after each step, or after each epoch.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, final

from atomo.core.bounds import ANY
from atomo.errors import ConfigError

__all__ = [
    "RATES", "SCHEDULES", "VOTES_RATE", "RateSchedule", "parse_milestones", "schedule_factor",
    "warm_up_factor",
]  # fmt: skip

RATES: Final[Mapping[str, float]] = MappingProxyType(
    {"sgd": 0.02, "adam": 0.001, "adamw": 0.001, "muon": 0.001}
)
"""The default learning rate of each optimizer."""
VOTES_RATE: Final = 0.0001
"""The default of codecs that vote: every weight moves by it at every step."""


@final
@dataclass(frozen=True)
class RateSchedule:
    """Milestones and factors of a learning-rate schedule. Steps count from 0 here."""

    last: int
    """Steps of the whole run."""
    warm_up: int = 0
    """Steps of the warm-up."""
    warm_up_from: float = 1.0
    """The share of the rate at which the warm-up begins, above 0."""
    every: int = 1
    """Steps between two falls; for `step`."""
    milestones: tuple[int, ...] = ()
    """Steps from which on the rate is lower, of the whole run; for `multistep`."""
    gamma: float = 0.1
    """Factor of each fall; for `step` and `multistep`."""
    end: float = 0.0
    """The share of the rate that is left after the last step; for `cosine` and `linear`."""
    whole: int = 1
    """The schedule moves once in so many steps: 1, or those of an epoch. A warm-up does always."""


def constant(plan: RateSchedule, step: int) -> float:
    return 1.0


def step_falls(plan: RateSchedule, step: int) -> float:
    return plan.gamma ** (step // plan.every)


def multistep(plan: RateSchedule, step: int) -> float:
    return plan.gamma ** sum(milestone <= step for milestone in plan.milestones)


def cosine(plan: RateSchedule, step: int) -> float:
    return plan.end + (1 - plan.end) * (1 + math.cos(math.pi * progress(plan, step))) / 2


def linear(plan: RateSchedule, step: int) -> float:
    return 1 + (plan.end - 1) * progress(plan, step)


def progress(plan: RateSchedule, step: int) -> float:
    """Computes the progress from the end of the warm-up to the end of the run, 0..1."""
    return min(1.0, max(0, step - plan.warm_up) / max(1, plan.last - plan.warm_up))


SCHEDULES: Final[Mapping[str, Callable[[RateSchedule, int], float]]] = MappingProxyType(
    {
        "constant": constant,
        "step": step_falls,
        "multistep": multistep,
        "cosine": cosine,
        "linear": linear,
    }
)


def schedule_factor(name: str, plan: RateSchedule, step: int) -> float:
    """Computes a schedule's factor on the learning rate at `step`, which counts from 0.

    >>> [schedule_factor("linear", RateSchedule(last=4), step) for step in range(4)]
    [1.0, 0.75, 0.5, 0.25]
    """
    return SCHEDULES[name](plan, step // plan.whole * plan.whole)


def warm_up_factor(plan: RateSchedule, step: int) -> float:
    """Computes a warm-up's factor on the learning rate at `step`; it rises linearly, step by step.

    Goyal et al., "Accurate, Large Minibatch SGD", 2017, section 2.2.
    """
    done = min(1.0, step / plan.warm_up) if plan.warm_up else 1.0
    return plan.warm_up_from + (1 - plan.warm_up_from) * done


def parse_milestones(text: str) -> tuple[float, ...]:
    """Returns the epochs that `30, 60, 80` names.

    Raises:
        ConfigError: they are no numbers, or do not increase.
    """
    try:
        epochs = tuple(float(word) for word in text.split(",") if word.strip())
    except ValueError:
        raise ConfigError(f"--lr-milestones: cannot read {text!r}; write '30, 60, 80'") from None
    if sorted(set(epochs)) != [*epochs] or not all(0 < epoch <= ANY.most for epoch in epochs):
        raise ConfigError(
            f"--lr-milestones {text!r}: name epochs above 0 in increasing order, such as '30, 60'"
        )
    return epochs
