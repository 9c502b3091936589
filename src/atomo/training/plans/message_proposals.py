"""Proposals of messages for `--fusion auto` and published searches, from a job's measurements."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from atomo.codecs import Codec
from atomo.fusion import shapes
from atomo.fusion.buckets import MOST
from atomo.fusion.flow import Flow
from atomo.fusion.searches import SEARCHES, within
from atomo.options.grouping import Grouping, cut_at, megabytes
from atomo.options.schedule import phases
from atomo.planning import Costs, Scenario
from atomo.planning.assignment import CodecCandidate, combined_costs
from atomo.planning.prediction import flow_of, predict
from atomo.training.job.job import Job, own_codecs
from atomo.training.job.plan import MessagePlan, TrialResult
from atomo.training.plans.allowance import Allowance
from atomo.training.plans.job_probe import JobMeasurements
from atomo.training.plans.plan_trials import PlanCandidate
from atomo.training.records.plan_records import job_hash, short_hash

__all__ = [
    "IN_PROGRESS",
    "after_trials",
    "best_messages",
    "costs_of",
    "main_codec",
    "partitions",
    "tensor_codecs",
    "unmeasured_messages",
]

SEARCHED: Final = "auto"  # the name of the search's own partition among candidates
OTHERS: Final = (Grouping("one"), Grouping("bytes", 4.0), Grouping("layer"))
IN_PROGRESS: Final = 8  # messages
ENTRY_BYTES: Final = 4


def main_codec(job: Job) -> Codec[Any]:
    """Returns the final codec of all parameters without a codec of their own."""
    return phases(job.settings.code, job.settings.code_schedule)[-1].codec


def tensor_codecs(job: Job) -> list[Codec[Any]]:
    """Returns the final codec of each parameter, from the last to the first."""
    tensors = shapes(job.model)
    own = own_codecs(job.settings, tensors)
    return [own.codec(name, main_codec(job)) for name, _ in reversed(tensors)]


def costs_of(job: Job, codecs: Sequence[Codec[Any]], measured: JobMeasurements) -> Costs:
    """Returns the costs of an exchange in which each tensor has its codec of the job."""
    numbers = {codec: number for number, codec in enumerate(codecs)}
    candidates = [CodecCandidate(costs, ()) for costs in measured.costs]
    return combined_costs(candidates, [numbers[codec] for codec in tensor_codecs(job)])


def best_messages(job: Job, search: str, measured: JobMeasurements, costs: Costs) -> MessagePlan:
    """Searches for the partition of least time."""
    name, scenario = job.settings.comm_type, measured.scenario
    flow = flow_of(scenario, costs, name)
    cuts = within(SEARCHES[search](flow), entries_of(job), MOST)
    tensors = len(entries_of(job))
    return MessagePlan(
        way=search,
        cuts=cuts,
        job=job_hash(job, search),
        exchange_s=flow.done(cuts),
        layers_s=flow.done(range(1, tensors + 1)),
        one_s=flow.done((tensors,)),
        took_s=0.0,
        numbers=measured.numbers,
        step_s=predict(scenario, costs, name, cut_at(cuts)).step_s,
    )


def unmeasured_messages(job: Job, search: str, allowance: Allowance) -> MessagePlan:
    """Returns the default's messages for a run that is too short to measure."""
    entries, settings = entries_of(job), job.settings
    sizes = [ENTRY_BYTES * count for count in entries]
    cuts = within(megabytes(settings.fusion_mb).cuts(sizes), entries, MOST)
    short, why = short_hash(job_hash(job, search), settings), allowance.refusal("messages")
    return MessagePlan(search, cuts, short, 0.0, 0.0, 0.0, 0.0, (), why=why)


def entries_of(job: Job) -> tuple[int, ...]:
    """Returns the entries of each parameter, from the last to the first."""
    return tuple(shape.numel() for _, shape in reversed(shapes(job.model)))


def partitions(
    job: Job, scenario: Scenario, costs: Costs, messages: MessagePlan
) -> dict[tuple[int, ...], PlanCandidate]:
    """Returns candidates by their cuts, the most promising first: the result of the search, and
    partitions that are often fast.
    """
    entries, s, code = entries_of(job), job.settings, str(main_codec(job))
    flow = flow_of(scenario, costs, s.comm_type)
    named = {
        SEARCHED: messages.cuts,
        "mergecomp": within(SEARCHES["mergecomp"](flow), entries, MOST),
    }
    named |= {str(grouping): within(grouping.cuts(scenario.profile.sizes), entries, MOST)
              for grouping in OTHERS}  # fmt: skip
    plans = dict[tuple[int, ...], PlanCandidate]()
    for name, cuts in named.items():
        fusion = str(cut_at(cuts))
        step_s = predict(scenario, costs, s.comm_type, cut_at(cuts)).step_s
        plans.setdefault(cuts, PlanCandidate(name, code, s.code_for, s.memory, fusion, step_s))
    return dict(sorted(plans.items(), key=lambda item: item[1].predicted_s))


def after_trials(
    messages: MessagePlan,
    plans: Mapping[tuple[int, ...], PlanCandidate],
    trials: tuple[TrialResult, ...],
    flow: Flow,
) -> MessagePlan:
    """Returns the messages that won the trials; without trials, the most promising messages."""
    name = trials[0].name if trials else next(iter(plans.values())).name
    cuts, step_s = next((c, plan.predicted_s) for c, plan in plans.items() if plan.name == name)
    return replace(messages, cuts=cuts, exchange_s=flow.done(cuts), step_s=step_s, trials=trials)
