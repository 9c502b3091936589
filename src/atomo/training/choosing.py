"""`--code auto`: before its first step a job measures what codecs cost and lose on its own
gradients, hosts and links, and chooses. Measuring takes a share of the run (`allowance.py`).

Every worker measures, all at the same time, since they share cores; rank 0 takes the mean of what
they found, chooses, and gives all the answer. A run that continues has the answer in its folder.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

import torch

from atomo.budget import Family, families
from atomo.codecs.dense_fallback import goes_dense
from atomo.coding import AUTO
from atomo.config import Settings
from atomo.fusion import shapes
from atomo.training.allowance import Allowance, TimeLeft
from atomo.training.chosen import Chosen, kept_chosen, length_said, said
from atomo.training.job import Job, make_job
from atomo.training.listing import recorded
from atomo.training.measuring import Measured, measure
from atomo.training.plan_records import continued
from atomo.training.proposals import Proposal, codecs_of, promising, proposed
from atomo.training.rehearsal import Contender, join_rehearsal, rehearse, time_steps
from atomo.training.telling import hear, names_of_hosts, tell
from atomo.transports import Transport

__all__ = ["choose_codecs"]

LIMIT: Final = "limit_s"  # in what travels; 0: nothing is measured
UNTRIED_WORTH: Final = 1.3  # by which one prediction in four is off
CPU: Final = torch.device("cpu")  # `coding.check_auto` refuses others


def choose_codecs(
    settings: Settings,
    transport: Transport,
    say: Callable[[str], object] = lambda why: None,
    note: Callable[[str], object] = lambda text: None,
) -> Chosen | None:
    """What `--code auto` comes to, alike on all ranks; None where a codec was named.

    Args:
        settings: resolved.
        transport: connects the ranks.
        say: told, on rank 0, why an answer that is there does not serve.
        note: told, on rank 0, how long measuring may take, before it begins.

    Raises:
        TransportError: a rank does not take part.
    """
    if settings.code != AUTO:
        return None
    hosts = names_of_hosts(transport, settings.timeout)
    if transport.rank == 0:
        kept = kept_chosen(settings, hosts, say)
        memory = memory_of_checkpoint(settings) if settings.memory == AUTO else settings.memory
        tell(transport, {"chosen": asdict(kept) if kept else None, "memory": memory})
        found = kept or lead(settings, memory, transport, hosts, note)
    else:
        told = hear(transport, settings.timeout)
        found = Chosen.read(told["chosen"] or follow(settings, told["memory"], transport))
    transport.drain(settings.timeout)
    return found


def memory_of_checkpoint(settings: Settings) -> str:
    """The memory that a run which is continued has; auto: any."""
    folder, step = continued(settings) or (None, 0)
    return str(recorded(folder, step).get("memory", AUTO)) if folder and step else AUTO


def lead(
    settings: Settings,
    memory: str,
    transport: Transport,
    hosts: tuple[str, ...],
    note: Callable[[str], object],
) -> Chosen:
    """Rank 0's part: it chooses."""
    began = time.perf_counter()
    some, job = families(settings, memory), job_of(settings, transport)
    _, done = continued(settings) or (None, 0)
    allowance, overhead_s = allowed(job, transport, done)
    left = TimeLeft(allowance.limit_s if allowance.pays else 0.0)
    tell(transport, {LIMIT: left.seconds})
    transport.drain(settings.timeout)
    if allowance.pays:
        note(f"auto: {allowance.text('codecs')}")
        found = measure(job, transport, CPU, codecs_of(some), left=left)
        proposals = proposed(settings, measured_of(some, found), found)
        best = tried(settings, job, transport, proposals, left, overhead_s)
    else:
        best = unmeasured(settings, job, some[0], allowance)
    took_s = time.perf_counter() - began
    chosen = replace(best, took_s=took_s, hosts=hosts, since=done + 1)
    tell(transport, {"chosen": asdict(chosen)})
    return chosen


def follow(settings: Settings, memory: str, transport: Transport) -> dict[str, Any]:
    """The part of all ranks but the first, which tells them what was chosen."""
    some, job = families(settings, memory), job_of(settings, transport)
    join_rehearsal(job, transport, CPU)
    limit_s = hear(transport, settings.timeout)[LIMIT]
    if limit_s:
        measure(job, transport, CPU, codecs_of(some), left=TimeLeft(limit_s))
        join_rehearsal(job, transport, CPU)
    chosen: dict[str, Any] = hear(transport, settings.timeout)["chosen"]
    return chosen


def allowed(job: Job, transport: Transport, done: int) -> tuple[Allowance, float]:
    """Times a few steps on all ranks, and returns the allowance for measuring before the steps from
    `done` on, and the seconds that each trial takes beside its steps.
    """
    began, s = time.perf_counter(), job.settings
    plan = Contender("dense", s.code, s.code_for, s.memory, s.fusion, 0.0)
    step_s, overhead_s = time_steps(job, transport, CPU, plan)
    spent_s = time.perf_counter() - began
    return Allowance(step_s, job.last_step - done, s.auto_share, spent_s), overhead_s


def measured_of(some: Sequence[Family], found: Measured) -> list[Family]:
    """The families with the codecs that there was time to measure."""
    there = {costs.spec for costs in found.costs}
    kept = [
        replace(family, codecs=tuple(one for one in family.codecs if str(one) in there))
        for family in some
    ]
    return [family for family in kept if family.codecs]


def unmeasured(settings: Settings, job: Job, family: Family, allowance: Allowance) -> Chosen:
    """Every gradient dense, since the run is too short to find anything out."""
    tensors = reversed(shapes(job.model))
    codes = {name: str(family.codecs[0]) for name, shape in tensors if not goes_dense(shape)}
    return Chosen(
        codes, family.memory, 0.0, family.budget, 0.0, allowance.step_s, 0.0,
        said(settings) | length_said(settings), why=allowance.refusal("codecs"),
    )  # fmt: skip


def job_of(settings: Settings, transport: Transport) -> Job:
    """The job with a model of its own, dense, with a message for each tensor."""
    plain = replace(settings, code="sgd", memory="none", fusion="layer")
    return make_job(plain.resolved(), transport.size)


def tried(
    settings: Settings,
    job: Job,
    transport: Transport,
    proposals: Sequence[Proposal],
    left: TimeLeft,
    overhead_s: float,
) -> Chosen:
    """The proposal that real steps are shortest with, of those that promise most."""
    plans = [one.plan(settings) for one in proposals]
    trials = rehearse(job, transport, CPU, plans, left, overhead_s)
    if not trials:
        return promising(proposals, UNTRIED_WORTH).chosen
    best = next(one.chosen for one in proposals if one.name == trials[0].name)
    return replace(best, trials=trials)
