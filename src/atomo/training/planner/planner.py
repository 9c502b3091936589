"""The planner of `--code auto` and `--fusion auto`: one procedure for both, run by all ranks.

1. Rank 0 looks for a plan in the folder of the run. If the plan is valid, all ranks use it.
2. Else all ranks time a few steps; rank 0 allows a share of the run for measurements
   (`allowance.py`). If the share is too small, the plan is the default.
3. All ranks measure at the same time, since they share cores and links (`job_probe.py`).
4. Rank 0 makes candidates from the measurements, and all ranks try them in real steps
   (`plan_trials.py`).
5. Rank 0 takes the winner and broadcasts it.

The resulting settings name the codecs and the messages (`--fusion cuts:...`). The folder of the run
has them: a run that repeats or continues it has the same bits.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, TypeVar, final

import torch

from atomo.analysis.budget import families
from atomo.config.resolve_codec import AUTO_CODEC
from atomo.config.settings import Settings
from atomo.planning.prediction import flow_of
from atomo.training.checkpoints.index import recorded
from atomo.training.job.broadcasts import broadcast_json, names_of_hosts, receive_json
from atomo.training.job.job import Job, make_job, make_stages
from atomo.training.job.plan import CodecPlan, MessagePlan, TrialResult
from atomo.training.plans.allowance import Allowance, TimeLeft
from atomo.training.plans.codec_proposals import (
    best_codecs,
    codecs_of,
    measured_families,
    propose_codecs,
    unmeasured_codecs,
)
from atomo.training.plans.job_probe import measure_job
from atomo.training.plans.message_proposals import (
    IN_PROGRESS,
    after_trials,
    best_messages,
    costs_of,
    main_codec,
    partitions,
    tensor_codecs,
    unmeasured_messages,
)
from atomo.training.plans.plan_trials import PlanCandidate, join_trials, time_steps, try_plans
from atomo.training.records.plan_records import continued, job_hash, kept_codecs, kept_messages
from atomo.transports import FOREVER_S, Subgroup, Transport

__all__ = ["PlanGroup", "plan_codecs", "plan_job", "plan_messages", "plan_with_spares"]

CPU: Final = torch.device("cpu")  # the settings of `--code auto` refuse other devices
TRIED: Final = "auto"  # the `--fusion` with trials; other searches are published, without trials

AnyPlan = TypeVar("AnyPlan", CodecPlan, MessagePlan)


@final
@dataclass(frozen=True)
class PlanGroup:
    """The ranks that plan together. Rank 0 decides."""

    transport: Transport
    device: torch.device
    timeout_s: float
    warn: Callable[[str], object] = lambda why: None
    """Receives on rank 0 the reason why a plan in the folder is not valid."""
    note: Callable[[str], object] = lambda text: None
    """Receives on rank 0 the time of measurements before they begin."""

    @property
    def leads(self) -> bool:
        """True on rank 0."""
        return self.transport.rank == 0

    def share(self, values: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """Returns the values of rank 0 on all ranks."""
        if values is None or not self.leads:
            return receive_json(self.transport, self.timeout_s)
        broadcast_json(self.transport, values)
        self.transport.drain(self.timeout_s)
        return values

    def time_steps(self, job: Job, candidate: PlanCandidate) -> tuple[float, float]:
        """Returns on rank 0 the seconds of a step, and of a trial without steps; else zeros."""
        if self.leads:
            return time_steps(job, self.transport, self.device, candidate)
        join_trials(job, self.transport, self.device)
        return 0.0, 0.0

    def try_plans(
        self,
        job: Job,
        candidates: Sequence[PlanCandidate],
        limit: TimeLeft | None = None,
        overhead_s: float = 0.0,
    ) -> tuple[TrialResult, ...]:
        """Tries rank 0's candidates; returns the results on rank 0, the winner's first."""
        if self.leads:
            return try_plans(job, self.transport, self.device, candidates, limit, overhead_s)
        join_trials(job, self.transport, self.device)
        return ()

    def measuring_time(self, allowance: Allowance, search: str, subject: str) -> TimeLeft | None:
        """Returns the time for measurements that rank 0's allowance gives; None: too short."""
        if self.leads and allowance.pays:
            self.note(f"{search}: {allowance.text(subject)}")
        limit_s = allowance.limit_s if allowance.pays else 0.0
        limit_s = self.share({"limit_s": limit_s})["limit_s"]
        return TimeLeft(limit_s) if limit_s else None

    def decide(
        self,
        settings: Settings,
        stored: Callable[[tuple[str, ...]], AnyPlan | None],
        search: Callable[[int], AnyPlan | None],
        read: Callable[[Mapping[str, Any]], AnyPlan],
    ) -> AnyPlan:
        """Returns rank 0's plan on all ranks: a stored plan, or else the result of a search.

        Args:
            settings: of the run.
            stored: returns a valid plan for these hosts from the folder; rank 0 calls it.
            search: searches for a plan, given the number of finished steps. All ranks call it, and
                the result of rank 0 counts.
            read: reads a plan from a record.
        """
        began, hosts = time.perf_counter(), names_of_hosts(self.transport, self.timeout_s)
        plan = stored(hosts) if self.leads else None
        if not self.share({"kept": plan is not None})["kept"]:
            _, done = (continued(settings) if self.leads else None) or (None, 0)
            plan = search(done)
            took_s = time.perf_counter() - began
            plan = plan and replace(plan, took_s=took_s, hosts=hosts, since=done + 1)
        return read(self.share({"plan": asdict(plan)} if plan else None)["plan"])


def plan_with_spares(
    settings: Settings, transport: Transport, plan: Callable[[Settings, Transport], Job]
) -> Job:
    """Plans a job on the ranks that train, and gives the plan to the spares; the same on all ranks.

    Args:
        settings: as the user gave them, resolved.
        transport: connects all ranks, the spares last.
        plan: makes the job on the ranks that train; on all ranks if nothing is measured.
    """
    if not settings.spares or not settings.measures:
        return plan(settings, transport)
    trains = range(settings.n)
    if transport.rank not in trains:
        # A spare waits without a limit for the measurements; the death of rank 0 ends the wait.
        return make_job(Settings(**receive_json(transport, FOREVER_S)), transport.size)
    one_host = transport.local_size == transport.size
    job = plan(replace(settings, spares=0), Subgroup(transport, trains, one_host=one_host))
    job = replace(job, settings=replace(job.settings, spares=settings.spares))
    if transport.rank == 0:
        spares = [0, *range(settings.n, transport.size)]
        broadcast_json(Subgroup(transport, spares, one_host=False), asdict(job.settings))
        transport.drain(settings.timeout)
    return job


def plan_job(settings: Settings, group: PlanGroup) -> Job:
    """Makes the job with the codecs and messages of the settings, after any search."""
    codecs = plan_codecs(settings, group)
    settings = codecs.applied(settings) if codecs else settings
    job = make_job(settings, group.transport.size)
    return plan_messages(replace(job, plan=replace(job.plan, codecs=codecs)), group)


def plan_codecs(settings: Settings, group: PlanGroup) -> CodecPlan | None:
    """Returns the codecs of `--code auto`, the same on all ranks; None if a codec is named.

    Raises:
        CheckpointError: the file of codecs in the folder cannot be read.
        TransportError: a rank does not take part.
    """
    if settings.code != AUTO_CODEC:
        return None
    return group.decide(
        settings,
        lambda hosts: kept_codecs(settings, hosts, group.warn),
        lambda done: search_codecs(settings, group, done),
        CodecPlan.read,
    )


def search_codecs(settings: Settings, group: PlanGroup, done: int) -> CodecPlan | None:
    """Measures on all ranks; returns the codecs on rank 0."""
    began = time.perf_counter()
    memory = group.share({"memory": memory_of_run(settings) if group.leads else ""})["memory"]
    candidate_families, job = families(settings, memory), bare_job(settings, group)
    s = job.settings
    candidate = PlanCandidate("dense", s.code, s.code_for, s.memory, s.fusion, 0.0)
    step_s, overhead_s = group.time_steps(job, candidate)
    spent_s = time.perf_counter() - began
    allowance = Allowance(step_s, job.last_step - done, settings.auto_share, spent_s)
    limit = group.measuring_time(allowance, "auto", "codecs")
    if limit is None:
        return unmeasured_codecs(settings, job, candidate_families[0], allowance)
    measured = measure_job(job, group.transport, CPU, codecs_of(candidate_families), limit=limit)
    proposals = (
        propose_codecs(settings, measured_families(candidate_families, measured), measured)
        if group.leads
        else []
    )
    candidates = [proposal.candidate(settings) for proposal in proposals]
    trials = group.try_plans(job, candidates, limit, overhead_s)
    return best_codecs(proposals, trials) if group.leads else None


def memory_of_run(settings: Settings) -> str:
    """Returns the memory of a resumed run; "auto": any memory."""
    folder, step = continued(settings) or (None, 0)
    if settings.memory != AUTO_CODEC or not folder or not step:
        return settings.memory
    return str(recorded(folder, step).get("memory", AUTO_CODEC))


def bare_job(settings: Settings, group: PlanGroup) -> Job:
    """Makes a job to measure: dense, with a message for each tensor."""
    bare = replace(settings, code="sgd", memory="none", fusion="layer")
    return make_job(bare.resolved(), group.transport.size)


def plan_messages(draft: Job, group: PlanGroup) -> Job:
    """Returns the job with the messages of a `--fusion` that is searched; all ranks call this.

    Args:
        draft: of this rank; with a message for each tensor if messages are searched for.
        group: the ranks.

    Raises:
        CheckpointError: the file of messages in the folder cannot be read.
        DeadlineExpired, PeerLost: a rank does not take part.
    """
    settings = draft.settings
    if not settings.grouping.searched:
        return draft
    job = job_hash(draft, settings.grouping.name)
    messages = group.decide(
        settings,
        lambda hosts: kept_messages(settings, job, hosts, group.warn),
        lambda done: search_messages(draft, group, done),
        MessagePlan.read,
    )
    settings = replace(settings, fusion=messages.fusion)
    stages = make_stages(settings, draft.model, draft.steps_per_epoch)
    plan = replace(draft.plan, messages=messages)
    return replace(draft, settings=settings, stages=stages, plan=plan)


def search_messages(draft: Job, group: PlanGroup, done: int) -> MessagePlan | None:
    """Measures on all ranks; returns the messages on rank 0."""
    search, limit, overhead_s = draft.settings.grouping.name, None, 0.0
    if search == TRIED:
        allowance, overhead_s = messages_allowance(draft, group, done)
        limit = group.measuring_time(allowance, f"fusion {search}", "messages")
        if limit is None:
            return unmeasured_messages(draft, search, allowance)
    codecs = [*dict.fromkeys([main_codec(draft), *tensor_codecs(draft)])]
    measured = measure_job(
        draft, group.transport, group.device, codecs, under_way=IN_PROGRESS, errors=False
    )
    costs = costs_of(draft, codecs, measured)
    messages = best_messages(draft, search, measured, costs)
    if search != TRIED:
        return messages
    scenario = measured.scenario
    plans = partitions(draft, scenario, costs, messages) if group.leads else {}
    trials = group.try_plans(draft, [*plans.values()], limit, overhead_s)
    flow = flow_of(scenario, costs, draft.settings.comm_type)
    return after_trials(messages, plans, trials, flow) if group.leads else None


def messages_allowance(draft: Job, group: PlanGroup, done: int) -> tuple[Allowance, float]:
    """Returns the allowance for measurements, and the seconds of a trial without its steps.

    Steps are timed unless the search for codecs has just timed them.
    """
    began, s, codecs = time.perf_counter(), draft.settings, draft.plan.codecs
    steps = draft.last_step - done
    if codecs and (step_s := draft.plan.expected_s or codecs.dense_s):
        return Allowance(step_s, steps, s.auto_share, codecs.took_s), 0.0
    code = str(main_codec(draft))
    candidate = PlanCandidate("layer", code, s.code_for, s.memory, "layer", 0.0)
    step_s, overhead_s = group.time_steps(draft, candidate)
    return Allowance(step_s, steps, s.auto_share, time.perf_counter() - began), overhead_s
