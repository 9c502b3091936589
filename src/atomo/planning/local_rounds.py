"""Prediction of training with local steps: H steps without communication, then one exchange.

An exchange does not overlap the passes. With a step of t seconds and an exchange of x seconds, a
share u of the time is computing from H = u / (1 - u) x / t steps in a round on.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, final

from atomo.errors import ConfigError
from atomo.planning.costs import Costs
from atomo.planning.prediction import Scenario, exchange_of, predict
from atomo.planning.rails import HIERARCHICAL, flat_name
from atomo.planning.step_profile import Profile

__all__ = [
    "AUTO",
    "LONGEST",
    "SHARE",
    "LocalRound",
    "compare_rounds",
    "parse_every",
    "predict_round",
]

SHARE: Final = 0.95  # of the time, that is to be computing
AUTO: Final = "auto"
LONGEST: Final = 10_000  # steps in a round


@final
@dataclass(frozen=True)
class LocalRound:
    """The predicted costs of rounds of one codec under one communicator."""

    code: str
    communicator: str
    hierarchical: bool
    """True if sums inside a host are dense, and the codec serves between hosts."""
    every: int
    """Steps in a round."""
    needed: int
    """Steps in a round from which on `SHARE` of the time is computing."""
    exchange_s: float
    step_s: float
    """Mean seconds of a step, with its share of an exchange."""
    computing: float
    """Share of the time that is computing."""
    sent_bytes: float
    """Mean bytes of a step on the busiest link, in one direction."""
    peak_bytes: float
    """Bytes of an exchange on the busiest link, in one direction."""


def parse_every(text: str) -> int | None:
    """Returns the number of steps in a round; None for `auto`.

    >>> parse_every("32"), parse_every("auto")
    (32, None)

    Raises:
        ConfigError: the text is no number of steps.
    """
    if text == AUTO:
        return None
    if not text.isdecimal() or not 1 <= int(text) <= LONGEST:
        raise ConfigError(
            f"--local-steps {text}: give the number of steps in a round, 1 to {LONGEST}, or auto"
        )
    return int(text)


def predict_round(
    scenario: Scenario, costs: Costs, communicator: str, every: int | None
) -> LocalRound:
    """Predicts a round.

    Args:
        scenario: the workers and their links.
        costs: of the codec under this communicator.
        communicator: of `EXCHANGES`; with the prefix `HIERARCHICAL` if it has no master.
        every: the steps in a round. None: 1 if an exchange after each step, beside the backward
            pass, leaves `SHARE` of the time to computing; else as many as needed.
    """
    compute_s = (
        scenario.compute_s + scenario.host_model.oversubscription * scenario.profile.update_s
    )
    exchange_s = exchange_seconds(scenario, costs, communicator)
    overlapped_s = predict(scenario, costs, communicator).step_s
    keeps_up = compute_s >= SHARE * overlapped_s
    needed = 1 if keeps_up else steps_needed(exchange_s, compute_s)
    chosen = needed if every is None else every
    step_s = overlapped_s if chosen == 1 else compute_s + exchange_s / chosen
    peak_bytes = exchange_of(scenario, communicator).crossings * costs.sent_bytes
    return LocalRound(
        costs.spec,
        flat_name(communicator),
        communicator.startswith(HIERARCHICAL),
        chosen,
        needed,
        exchange_s,
        step_s,
        min(1.0, compute_s / step_s),
        peak_bytes / chosen,
        peak_bytes,
    )


def steps_needed(exchange_s: float, compute_s: float) -> int:
    """Returns the least number of steps in a round that leaves `SHARE` of the time to computing.

    >>> steps_needed(0.1, 0.05)
    38

    Args:
        exchange_s: seconds of an exchange.
        compute_s: seconds of a step without an exchange, above 0.
    """
    # Less a rounding error: 1 - 0.95 is not 0.05.
    return max(1, math.ceil(SHARE / (1 - SHARE) * exchange_s / compute_s - 1e-9))


def exchange_seconds(scenario: Scenario, costs: Costs, communicator: str) -> float:
    """Predicts the seconds of an exchange that nothing overlaps."""
    return predict(replace(scenario, profile=at_rest(scenario.profile)), costs, communicator).step_s


def at_rest(profile: Profile) -> Profile:
    """Returns a profile whose gradients are ready from the begin."""
    ready = (0.0,) * len(profile.ready_s)
    return replace(profile, forward_s=0.0, ready_s=ready, backward_s=0.0, update_s=0.0)


def compare_rounds(
    scenario: Scenario, measured: Sequence[tuple[Costs, str]], every: int | None
) -> Iterator[LocalRound]:
    """Predicts rounds of each codec and communicator; arguments as of `predict_round`."""
    for costs, communicator in measured:
        yield predict_round(scenario, costs, communicator, every)
