"""The codec of each tensor by which a step is done first, whose errors stay within a budget.

A step's time is no sum over tensors: encoding, sending and decoding overlap each other and the
backward pass. So the knapsack (`knapsack.py`), whose times are sums, is solved for several weights
of the three machines; each answer, and each codec for all tensors, is put to the flow shop; and the
best of them is improved tensor by tensor, by what the flow shop says.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from atomo.grouping import Grouping
from atomo.planning.costs import Cost, Costs
from atomo.planning.knapsack import cheapest
from atomo.planning.prediction import Setting, flow_of, predict

__all__ = ["Candidate", "Choice", "choose", "mixed", "of_one"]

WEIGHTS: Final = (
    (1.0, 1.0, 1.0),  # nothing overlaps
    (1.0, 0.05, 0.05),  # who encodes is the bottleneck,
    (0.05, 1.0, 0.05),  # or the link,
    (0.05, 0.05, 1.0),  # or who decodes
    (0.5, 1.0, 0.5),
)
TRIES: Final = 200  # predictions, to improve what is best


@final
@dataclass(frozen=True)
class Candidate:
    """A codec that tensors may have."""

    costs: Costs
    errors: tuple[float, ...]
    """Of each tensor, from the last parameter to the first; 0 where it goes dense anyway."""


@final
@dataclass(frozen=True)
class Choice:
    """A candidate for each tensor."""

    picks: tuple[int, ...]
    """Their numbers, from the last parameter to the first."""
    error: float
    """The sum of all."""
    step_s: float


@final
@dataclass(frozen=True)
class Shop:
    """Whose steps are to be short."""

    setting: Setting
    candidates: Sequence[Candidate]
    communicator: str
    grouping: Grouping | None

    def choice(self, picks: Sequence[int]) -> Choice:
        """What comes of a candidate for each tensor."""
        error = sum(self.candidates[pick].errors[at] for at, pick in enumerate(picks))
        costs = mixed(self.candidates, picks)
        taken = predict(self.setting, costs, self.communicator, self.grouping)
        return Choice(tuple(picks), error, taken.step_s)


def choose(
    setting: Setting,
    candidates: Sequence[Candidate],
    communicator: str,
    grouping: Grouping | None,
    budget: float,
) -> Choice:
    """The choice of least predicted time.

    Args:
        setting: the workers and their links.
        candidates: what may be chosen, the first without any error.
        communicator: one of `EXCHANGES`, under which all costs were measured.
        grouping: which tensors share messages; None: what is best.
        budget: what errors may add up to.
    """
    shop = Shop(setting, candidates, communicator, grouping)
    errors = np.array([one.errors for one in candidates]).T
    flows = [flow_of(setting, one.costs, communicator) for one in candidates]
    times = np.array([flow.each for flow in flows]).transpose(1, 0, 2)  # tensor, candidate, machine
    tried = {cheapest(times @ np.array(weights), errors, budget) for weights in WEIGHTS}
    tensors = range(len(errors))
    tried |= {(number,) * len(tensors) for number, one in enumerate(candidates)
              if sum(one.errors) <= budget}  # fmt: skip
    best = min((shop.choice(picks) for picks in sorted(tried)), key=lambda one: one.step_s)
    largest = sorted(tensors, key=lambda at: -setting.profile.sizes[at])
    return improved(shop, best, largest, budget)


def of_one(
    setting: Setting, candidate: Candidate, communicator: str, grouping: Grouping | None
) -> Choice:
    """One candidate for all tensors."""
    return Shop(setting, [candidate], communicator, grouping).choice((0,) * len(candidate.errors))


def improved(shop: Shop, best: Choice, tensors: Sequence[int], budget: float) -> Choice:
    """The same or better: tensor after tensor tries every candidate while tries are left."""
    tries, before = TRIES, np.inf
    while tries > 0 and best.step_s < before:
        before = best.step_s
        for tensor in tensors:
            for pick in range(len(shop.candidates)):
                if pick == best.picks[tensor] or tries <= 0:
                    continue
                picks = (*best.picks[:tensor], pick, *best.picks[tensor + 1 :])
                tries -= 1
                found = shop.choice(picks)
                if found.error <= budget and found.step_s < best.step_s:
                    best = found
    return best


def mixed(candidates: Sequence[Candidate], picks: Sequence[int]) -> Costs:
    """What exchanges cost in which each tensor has a codec of its own."""
    used = [candidates[pick].costs for pick in sorted({*picks})]
    messages = [one.message for one in used]
    return Costs(
        "; ".join(one.spec for one in used),
        tuple(candidates[pick].costs.each[at] for at, pick in enumerate(picks)),
        Cost(
            max(one.encode_s for one in messages),
            max(one.decode_s for one in messages),
            max(one.sent_bytes for one in messages),
        ),
        max(one.rounds for one in used),
        any(one.holds for one in used),
        all(one.half for one in used),
    )
