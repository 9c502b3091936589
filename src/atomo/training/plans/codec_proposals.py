"""Proposals of codecs for `--code auto`, from the measurements of a job."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, Final, final

from atomo.analysis.budget import LOSSLESS, Family
from atomo.codecs import Codec
from atomo.codecs.dense_fallback import goes_dense
from atomo.config.settings import Settings
from atomo.fusion import shapes
from atomo.planning.assignment import (
    CodecAssignment,
    CodecCandidate,
    assign_codecs,
    assign_one,
    combined_costs,
)
from atomo.planning.comparison import MIN_GAIN
from atomo.planning.prediction import predict
from atomo.training.job.job import Job
from atomo.training.job.plan import CodecPlan, TrialResult, length_settings, planned_settings
from atomo.training.plans.allowance import Allowance
from atomo.training.plans.job_probe import JobMeasurements
from atomo.training.plans.plan_trials import PlanCandidate

__all__ = [
    "CodecProposal",
    "best_codecs",
    "codecs_of",
    "measured_families",
    "most_promising",
    "propose_codecs",
    "unmeasured_codecs",
]

DENSE: Final = "dense"
UNTRIED_GAIN: Final = 1.3  # one in four predictions is off by more


@final
@dataclass(frozen=True)
class CodecProposal:
    """A plan of codecs, with the messages that its prediction assumes."""

    name: str
    codecs: CodecPlan
    fusion: str

    def candidate(self, settings: Settings) -> PlanCandidate:
        """Returns the proposal as a candidate for trials."""
        s = self.codecs.applied(settings)
        changes = s.code, s.code_for, s.memory, self.fusion
        return PlanCandidate(self.name, *changes, self.codecs.step_s)


def codecs_of(families: Sequence[Family]) -> list[Codec[Any]]:
    """Returns the codecs of all families, each once, the families taking turns: if time is short,
    only the first codecs are measured.
    """
    turns = zip_longest(*(family.codecs for family in families))
    return [*dict.fromkeys(codec for turn in turns for codec in turn if codec is not None)]


def measured_families(families: Sequence[Family], measured: JobMeasurements) -> list[Family]:
    """Returns the families with only the codecs that were measured."""
    specs = {costs.spec for costs in measured.costs}
    measured_parts = [
        replace(family, codecs=tuple(codec for codec in family.codecs if str(codec) in specs))
        for family in families
    ]
    return [family for family in measured_parts if family.codecs]


def most_promising(proposals: Sequence[CodecProposal], min_gain: float = MIN_GAIN) -> CodecProposal:
    """Returns the proposal of least predicted time; the first, dense one if the gain is small.

    Args:
        proposals: the first one dense.
        min_gain: the least ratio of the dense step's time to the best one's.
    """
    first = proposals[0]
    best = min(proposals, key=lambda proposal: proposal.codecs.step_s)
    return best if best.codecs.step_s * min_gain < first.codecs.step_s else first


def propose_codecs(
    settings: Settings, families: Sequence[Family], measured: JobMeasurements
) -> list[CodecProposal]:
    """Proposes dense gradients and, for each family, the fastest assignment and every single codec
    with errors within the budget.
    """
    proposer = Proposer(settings, measured)
    proposals = [proposer.dense(families[0])]
    for family in families:
        proposals += proposer.of(family)
    distinct: dict[tuple[tuple[str, ...], str], CodecProposal] = {}
    for proposal in proposals:
        codes = tuple(proposal.codecs.codes.values())
        dense = all(code == LOSSLESS for code in codes)  # then the memory has no residual
        distinct.setdefault((codes, "" if dense else proposal.codecs.memory), proposal)
    return [*distinct.values()]


def best_codecs(proposals: Sequence[CodecProposal], trials: tuple[TrialResult, ...]) -> CodecPlan:
    """Returns the codecs that won the trials; without trials, the most promising codecs."""
    if not trials:
        return most_promising(proposals, UNTRIED_GAIN).codecs
    best = next(proposal for proposal in proposals if proposal.name == trials[0].name)
    return replace(best.codecs, trials=trials)


def unmeasured_codecs(
    settings: Settings, job: Job, family: Family, allowance: Allowance
) -> CodecPlan:
    """Returns dense gradients for a run that is too short to measure."""
    tensors = reversed(shapes(job.model))
    codes = {name: str(family.codecs[0]) for name, shape in tensors if not goes_dense(shape)}
    return CodecPlan(
        codes, family.memory, 0.0, family.budget, 0.0, allowance.step_s, 0.0,
        planned_settings(settings) | length_settings(settings), why=allowance.refusal("codecs"),
    )  # fmt: skip


@final
class Proposer:
    """Builder of proposals from measurements."""

    def __init__(self, settings: Settings, measured: JobMeasurements) -> None:
        self._settings, self._measured = settings, measured
        self._number = {costs.spec: number for number, costs in enumerate(measured.costs)}
        # The search for messages comes after the codecs: until then the best grouping is assumed.
        self._grouping = None if settings.grouping.searched else settings.grouping
        self._dense_s = 0.0

    def dense(self, family: Family) -> CodecProposal:
        """Proposes float32 for all tensors; comes first, since others are compared with it."""
        assignment = self._alone(family.codecs[0])
        self._dense_s = assignment.step_s
        return self._proposal(DENSE, family, family.codecs[:1], assignment)

    def of(self, family: Family) -> Iterator[CodecProposal]:
        """Proposes codecs of a family."""
        candidates = [self._candidate(codec) for codec in family.codecs]
        for codec, candidate in zip(family.codecs[1:], candidates[1:], strict=True):
            if sum(candidate.errors) <= family.budget:
                alone = self._alone(codec)
                yield self._proposal(name_in(family, str(codec)), family, (codec,), alone)
        name = self._settings.comm_type
        scenario = self._measured.scenario
        best = assign_codecs(scenario, candidates, name, self._grouping, family.budget)
        yield self._proposal(name_in(family, "mixed"), family, family.codecs, best)

    def _candidate(self, codec: Codec[Any]) -> CodecCandidate:
        number, workers = self._number[str(codec)], self._measured.scenario.workers
        errors = self._measured.errors[number].of_mean(workers)
        return CodecCandidate(self._measured.costs[number], errors)

    def _alone(self, codec: Codec[Any]) -> CodecAssignment:
        scenario, name = self._measured.scenario, self._settings.comm_type
        return assign_one(scenario, self._candidate(codec), name, self._grouping)

    def _proposal(
        self,
        name: str,
        family: Family,
        codecs: Sequence[Codec[Any]],
        assignment: CodecAssignment,
    ) -> CodecProposal:
        gradient = self._measured.scenario.profile.gradient
        picks = zip(reversed(gradient.items()), assignment.picks, strict=True)
        codes = {n: str(codecs[pick]) for (n, value), pick in picks if not goes_dense(value.shape)}
        plan = CodecPlan(
            codes, family.memory, assignment.error, family.budget, assignment.step_s,
            self._dense_s, 0.0, planned_settings(self._settings),
        )  # fmt: skip
        return CodecProposal(name, plan, self._fusion(codecs, assignment))

    def _fusion(self, codecs: Sequence[Codec[Any]], assignment: CodecAssignment) -> str:
        """Returns the messages that the prediction assumes."""
        if self._grouping is not None:
            return self._settings.fusion
        costs = combined_costs([self._candidate(codec) for codec in codecs], assignment.picks)
        return str(predict(self._measured.scenario, costs, self._settings.comm_type).grouping)


def name_in(family: Family, name: str) -> str:
    """Adds the memory to a name, since families have codecs in common."""
    return name if family.memory == "none" else f"{name} + {family.memory}"
