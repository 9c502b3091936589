"""Assignment of a codec to each tensor: least predicted step time within an error budget.

A step's time is no sum over tensors: encoding, sending and decoding overlap each other and the
backward pass. The knapsack (`knapsack.py`) assumes sums of times. It is solved for several weights
of the three stages. The flow-shop model predicts a step for each of these solutions and for
each single codec. The fastest assignment is then improved tensor by tensor with the same model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from atomo.options.grouping import Grouping
from atomo.planning.costs import Cost, Costs
from atomo.planning.knapsack import cheapest
from atomo.planning.prediction import Scenario, flow_of, predict

__all__ = [
    "CodecAssignment",
    "CodecCandidate",
    "PlanProblem",
    "assign_codecs",
    "assign_one",
    "combined_costs",
]

# Weights of the times to encode, to send and to decode in the knapsack's sum.
WEIGHTS: Final = (
    (1.0, 1.0, 1.0),  # nothing overlaps
    (1.0, 0.05, 0.05),  # encoding is the bottleneck,
    (0.05, 1.0, 0.05),  # or the link,
    (0.05, 0.05, 1.0),  # or decoding
    (0.5, 1.0, 0.5),
)
TRIES: Final = 200  # predictions that the improvement may take


@final
@dataclass(frozen=True)
class CodecCandidate:
    """A codec that tensors may have."""

    costs: Costs
    errors: tuple[float, ...]
    """Error of each tensor, from the last parameter to the first; 0 where the tensor travels dense
    with any codec."""


@final
@dataclass(frozen=True)
class CodecAssignment:
    """A candidate for each tensor."""

    picks: tuple[int, ...]
    """Numbers of the candidates, from the last parameter to the first."""
    error: float
    """The sum over the tensors."""
    step_s: float


@final
@dataclass(frozen=True)
class PlanProblem:
    """The step that assignments are predicted for."""

    scenario: Scenario
    candidates: Sequence[CodecCandidate]
    communicator: str
    grouping: Grouping | None

    def assignment(self, picks: Sequence[int]) -> CodecAssignment:
        """Predicts the step with a candidate for each tensor."""
        error = sum(self.candidates[pick].errors[tensor] for tensor, pick in enumerate(picks))
        costs = combined_costs(self.candidates, picks)
        prediction = predict(self.scenario, costs, self.communicator, self.grouping)
        return CodecAssignment(tuple(picks), error, prediction.step_s)


def assign_codecs(
    scenario: Scenario,
    candidates: Sequence[CodecCandidate],
    communicator: str,
    grouping: Grouping | None,
    budget: float,
) -> CodecAssignment:
    """Returns the assignment of least predicted time.

    Args:
        scenario: the workers and their links.
        candidates: the codecs, the first without any error.
        communicator: of `EXCHANGES`; all costs were measured with this communicator.
        grouping: which tensors share messages; None: the best grouping.
        budget: limit of the sum of errors.
    """
    problem = PlanProblem(scenario, candidates, communicator, grouping)
    errors = np.array([candidate.errors for candidate in candidates]).T
    flows = [flow_of(scenario, candidate.costs, communicator) for candidate in candidates]
    times = np.array([flow.each for flow in flows]).transpose(1, 0, 2)  # tensor, candidate, stage
    starts = {cheapest(times @ np.array(weights), errors, budget) for weights in WEIGHTS}
    tensors = range(len(errors))
    starts |= {(number,) * len(tensors) for number, candidate in enumerate(candidates)
               if sum(candidate.errors) <= budget}  # fmt: skip
    assignments = (problem.assignment(picks) for picks in sorted(starts))
    best = min(assignments, key=lambda assignment: assignment.step_s)
    largest = sorted(tensors, key=lambda tensor: -scenario.profile.sizes[tensor])
    return improved(problem, best, largest, budget)


def assign_one(
    scenario: Scenario, candidate: CodecCandidate, communicator: str, grouping: Grouping | None
) -> CodecAssignment:
    """Returns the assignment of one candidate to all tensors."""
    problem = PlanProblem(scenario, [candidate], communicator, grouping)
    return problem.assignment((0,) * len(candidate.errors))


def improved(
    problem: PlanProblem, best: CodecAssignment, tensors: Sequence[int], budget: float
) -> CodecAssignment:
    """Tries every candidate for one tensor after another while tries are left."""
    tries, before = TRIES, np.inf
    while tries > 0 and best.step_s < before:
        before = best.step_s
        for tensor in tensors:
            for pick in range(len(problem.candidates)):
                if pick == best.picks[tensor] or tries <= 0:
                    continue
                picks = (*best.picks[:tensor], pick, *best.picks[tensor + 1 :])
                tries -= 1
                changed = problem.assignment(picks)
                if changed.error <= budget and changed.step_s < best.step_s:
                    best = changed
    return best


def combined_costs(candidates: Sequence[CodecCandidate], picks: Sequence[int]) -> Costs:
    """Returns the costs of exchanges in which each tensor has a codec of its own."""
    used = [candidates[pick].costs for pick in sorted({*picks})]
    messages = [costs.message for costs in used]
    return Costs(
        "; ".join(costs.spec for costs in used),
        tuple(candidates[pick].costs.each[tensor] for tensor, pick in enumerate(picks)),
        Cost(
            max(message.encode_s for message in messages),
            max(message.decode_s for message in messages),
            max(message.sent_bytes for message in messages),
        ),
        max(costs.rounds for costs in used),
        any(costs.holds for costs in used),
        all(costs.half for costs in used),
    )
