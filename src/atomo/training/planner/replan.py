"""A new plan during a run: all ranks measure, rank 0 decides, and all ranks use the plan.

Measurements and trials are those of `planner.py`, on gradients at the current weights. The memory
stays the same, so that its residual is valid for the new codecs: only codecs for this memory are
candidates.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, final

from atomo.analysis.budget import Family, families
from atomo.codecs import Codec
from atomo.config.resolve_codec import AUTO_CODEC
from atomo.config.settings import Settings
from atomo.planning import predict
from atomo.planning.comparison import MIN_GAIN
from atomo.training.job.compiling import compile_kernels
from atomo.training.job.events import ProbedAgain
from atomo.training.job.job import Job, make_stages
from atomo.training.job.plan import Plan
from atomo.training.planner.planner import PlanGroup
from atomo.training.plans.codec_proposals import codecs_of, most_promising, propose_codecs
from atomo.training.plans.job_probe import JobMeasurements, measure_job
from atomo.training.plans.message_proposals import (
    IN_PROGRESS,
    best_messages,
    costs_of,
    main_codec,
    tensor_codecs,
)
from atomo.training.plans.plan_trials import PlanCandidate

__all__ = ["PredictedPlan", "StepTimes", "replan_job", "weigh_plans"]

BEFORE, AFTER = "as it was", "new"  # names of candidates


@final
@dataclass(frozen=True)
class StepTimes:
    """Times of the steps so far."""

    step: int  # the last step
    measured_s: float
    expected_s: float


@final
@dataclass(frozen=True)
class PredictedPlan:
    """A plan with the time of its step, predicted or measured in a trial."""

    plan: Plan
    step_s: float

    def candidate(self, name: str, job: Job) -> PlanCandidate:
        """Returns the plan as a candidate for trials."""
        s = self.plan.applied(job.settings)
        code = s.code if self.plan.codecs else str(main_codec(job))
        return PlanCandidate(name, code, s.code_for, s.memory, s.fusion, self.step_s)


def replan_job(settings: Settings, job: Job, group: PlanGroup, times: StepTimes) -> Job:
    """Returns the job with other codecs or messages if steps gain enough by them now. All ranks
    call this together.

    Args:
        settings: as the user gave them; they select the searches.
        job: the job until now.
        group: the ranks; no message is under way.
        times: on rank 0.
    """
    began = time.perf_counter()
    candidate_families = (
        families(settings, job.settings.memory) if settings.code == AUTO_CODEC else []
    )
    codecs = [
        *dict.fromkeys([*codecs_of(candidate_families), main_codec(job), *tensor_codecs(job)])
    ]
    under_way = IN_PROGRESS if settings.grouping.searched else 1
    measured = measure_job(
        bare_job(job), group.transport, group.device, codecs, under_way=under_way,
        errors=bool(candidate_families),
    )  # fmt: skip
    if not group.leads:
        group.try_plans(job, ())
        return follow_plan(job, group.share())
    stays, best = weigh_plans(settings, job, candidate_families, codecs, measured)
    stays, best, changed = compare_plans(job, group, stays, best)
    took_s, chosen = time.perf_counter() - began, best if changed else stays
    plan = chosen.plan.changed(took_s=took_s)
    plan = plan.changed(since=times.step + 1) if changed else plan
    again = ProbedAgain(
        times.step + 1, times.measured_s, times.expected_s, stays.step_s, chosen.step_s, changed,
        took_s, plan.text,
    )  # fmt: skip
    return follow_plan(job, group.share({"plan": plan.record(), "again": asdict(again)}))


def compare_plans(
    job: Job, group: PlanGroup, stays: PredictedPlan, best: PredictedPlan
) -> tuple[PredictedPlan, PredictedPlan, bool]:
    """Tries both plans on rank 0, if there is time; all other ranks join the trials.

    Returns:
        Both plans with the times of their steps, and True if the second plan wins.
    """
    candidates = [stays.candidate(BEFORE, job), best.candidate(AFTER, job)]
    # Other ranks wait in `join_trials`. The call ends that wait, even if equal plans are not tried.
    trials = {trial.name: trial for trial in group.try_plans(job, candidates)}
    if candidates[0].changes == candidates[1].changes:
        return stays, best, False
    if not trials:
        return stays, best, best.step_s * MIN_GAIN < stays.step_s
    old, new = trials[BEFORE], trials[AFTER]
    return (
        PredictedPlan(stays.plan.changed(trials=(old, new)), old.taken_s),
        PredictedPlan(best.plan.changed(trials=(new, old)), new.taken_s),
        next(iter(trials)) == AFTER,
    )


def bare_job(job: Job) -> Job:
    """Returns the job to measure: dense, with a message for each tensor."""
    settings = replace(
        job.settings, code="sgd", code_for="", code_schedule="", memory="none", fusion="layer",
        dense_steps=0,
    )  # fmt: skip
    stages = make_stages(settings, job.model, job.steps_per_epoch)
    return replace(job, settings=settings, stages=stages)


def follow_plan(job: Job, decision: Any) -> Job:
    """Returns the job after rank 0's decision."""
    plan, again = Plan.read(decision["plan"]), ProbedAgain(**decision["again"])
    settings = plan.applied(job.settings)
    compile_kernels(settings.codecs)
    stages = make_stages(settings, job.model, job.steps_per_epoch)
    return replace(job, settings=settings, stages=stages, plan=plan, again=again)


def weigh_plans(
    settings: Settings,
    job: Job,
    candidate_families: Sequence[Family],
    codecs: Sequence[Codec[Any]],
    measured: JobMeasurements,
) -> tuple[PredictedPlan, PredictedPlan]:
    """Predicts a step by the current plan and by the best plan now, from the same measurements.

    Args:
        settings: as the user gave them; they select the searches.
        job: with the current plan.
        candidate_families: the family of the job's memory if codecs are searched for; else empty.
        codecs: the measured codecs, those of the family first.
        measured: of these codecs.
    """
    s, scenario, plan, then = job.settings, measured.scenario, job.plan, job
    costs = costs_of(job, codecs, measured)
    step_s = predict(scenario, costs, s.comm_type, s.grouping).step_s
    # The trials were before the drift: their times are no longer valid.
    stays = PredictedPlan(plan.changed(step_s=step_s, trials=()), step_s)
    chosen, messages = None, None
    if candidate_families and plan.codecs:
        proposal = most_promising(propose_codecs(settings, candidate_families, measured))
        chosen = replace(proposal.codecs, hosts=plan.codecs.hosts)
        then = replace(job, settings=chosen.applied(s))
        costs = costs_of(then, codecs, measured)
    if settings.grouping.searched:
        messages = best_messages(then, settings.grouping.name, measured, costs)
        messages = replace(messages, hosts=plan.messages.hosts if plan.messages else ())
        step_s = messages.step_s
    else:
        step_s = predict(scenario, costs, s.comm_type, s.grouping).step_s
    chosen = chosen and replace(chosen, step_s=step_s)
    return stays, PredictedPlan(Plan(chosen, messages), step_s)
