"""A plan is made again in the middle of a run: all ranks measure, rank 0 decides, all go on by it.

What is measured, and how it is weighed, is what `choosing.py` and `fused.py` do at the start, on
gradients at the weights that the run has come to. The memory stays what it is, so that what it
keeps is of use to the codecs that come: they are chosen among those that go with it.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, final

import torch

from atomo.budget import Family, families
from atomo.codecs import Codec
from atomo.coding import AUTO
from atomo.config import Settings
from atomo.grouping import cut_at
from atomo.planning import Costs, predict
from atomo.planning.assignment import CodecCandidate, combined_costs
from atomo.planning.comparison import MIN_GAIN
from atomo.training.chosen import Chosen
from atomo.training.compiling import compile_kernels
from atomo.training.events import ProbedAgain
from atomo.training.found import Found
from atomo.training.fused import UNDER_WAY, main_codec, searched, tensor_codecs
from atomo.training.job import Job, make_stages
from atomo.training.measuring import Measured, measure
from atomo.training.proposals import codecs_of, promising, proposed
from atomo.training.rehearsal import Contender, join_rehearsal, rehearse
from atomo.training.telling import hear, tell
from atomo.training.trials import Trial
from atomo.transports import Transport

__all__ = ["Plan", "Seen", "replanned", "weighed"]

FIRST: Final = 0  # the rank
BEFORE, AFTER = "as it was", "new"  # plans that are tried


@final
@dataclass(frozen=True)
class Seen:
    """Of the steps so far."""

    step: int  # the last one
    measured_s: float
    expected_s: float


@final
@dataclass(frozen=True)
class Plan:
    """Codecs and messages, each where the run is to find them."""

    chosen: Chosen | None
    found: Found | None
    step_s: float
    """Predicted, or taken when it was tried."""

    def contender(self, name: str, job: Job) -> Contender:
        """To be tried, beside what serves now."""
        s = self.chosen.applied(job.settings) if self.chosen else job.settings
        code = s.code if self.chosen else str(main_codec(job))
        fusion = str(cut_at(self.found.cuts)) if self.found else s.fusion
        return Contender(name, code, s.code_for, s.memory, fusion, self.step_s)

    def tried(self, trials: tuple[Trial, ...]) -> "Plan":
        """With what became of it, the first of these."""
        chosen, found = self.chosen, self.found
        return Plan(
            chosen and replace(chosen, trials=trials),
            found and replace(found, trials=trials),
            trials[0].taken_s,
        )

    @property
    def text(self) -> str:
        """A line for each."""
        return "\n".join(one.text for one in (self.chosen, self.found) if one)


def replanned(
    asked: Settings, job: Job, transport: Transport, device: torch.device, seen: Seen
) -> Job:
    """The same job by what all ranks measure now, which call this together: with other codecs or
    messages where a step gains enough by them.

    Args:
        asked: the settings as they were given: what is to be found, they say.
        job: as it was until now.
        transport: connects the ranks; nothing is under way.
        device: where this rank computes.
        seen: by rank 0.
    """
    began = time.perf_counter()
    some = families(asked, job.settings.memory) if asked.code == AUTO else []
    codecs = [*dict.fromkeys([*codecs_of(some), main_codec(job), *tensor_codecs(job)])]
    under_way = UNDER_WAY if asked.grouping.searched else 1
    found = measure(plain(job), transport, device, codecs, under_way=under_way, losses=bool(some))
    if transport.rank != FIRST:
        join_rehearsal(job, transport, device)
        told = hear(transport, asked.timeout)
        chosen = Chosen.read(told["chosen"]) if told["chosen"] else None
        return following(job, chosen, None, told["fusion"], ProbedAgain(**told["again"]))
    stays, best = weighed(asked, job, some, codecs, found)
    stays, best, changed = rehearsed(job, transport, device, stays, best)
    plan = best if changed else stays
    took_s = time.perf_counter() - began
    plan = timed(plan, took_s, seen.step + 1 if changed else 0)
    again = ProbedAgain(
        seen.step + 1, seen.measured_s, seen.expected_s, stays.step_s, plan.step_s, changed, took_s,
        plan.text,
    )  # fmt: skip
    fusion = str(cut_at(plan.found.cuts)) if plan.found else job.settings.fusion
    chosen_record = asdict(plan.chosen) if plan.chosen else None
    tell(transport, {"chosen": chosen_record, "fusion": fusion, "again": asdict(again)})
    transport.drain(asked.timeout)
    return following(job, plan.chosen, plan.found, fusion, again)


def rehearsed(
    job: Job, transport: Transport, device: torch.device, stays: Plan, best: Plan
) -> tuple[Plan, Plan, bool]:
    """What a step takes by either, tried where there is time; and whether the second is to serve
    from now on.
    """
    plans = [stays.contender(BEFORE, job), best.contender(AFTER, job)]
    if plans[0].changes == plans[1].changes:
        return stays, best, False
    trials = {one.name: one for one in rehearse(job, transport, device, plans)}
    if not trials:
        return stays, best, best.step_s * MIN_GAIN < stays.step_s
    one, other = trials[BEFORE], trials[AFTER]
    changed = next(iter(trials)) == AFTER
    return stays.tried((one, other)), best.tried((other, one)), changed


def plain(job: Job) -> Job:
    """The job as it is measured: dense, with a message for each tensor."""
    settings = replace(
        job.settings, code="sgd", code_for="", code_schedule="", memory="none", fusion="layer",
        dense_steps=0,
    )  # fmt: skip
    stages = make_stages(settings, job.model, job.steps_per_epoch)
    return replace(job, settings=settings, stages=stages)


def following(
    job: Job, chosen: Chosen | None, found: Found | None, fusion: str, again: ProbedAgain
) -> Job:
    """The job that goes on by a plan."""
    settings = chosen.applied(job.settings) if chosen else job.settings
    settings = replace(settings, fusion=fusion)
    compile_kernels(settings.codecs)
    stages = make_stages(settings, job.model, job.steps_per_epoch)
    return replace(job, settings=settings, stages=stages, chosen=chosen, found=found, again=again)


def weighed(
    asked: Settings, job: Job, some: Sequence[Family], codecs: Sequence[Codec[Any]], found: Measured
) -> tuple[Plan, Plan]:
    """What a step takes as it is, and with the best that there is now, by the same measurements.

    Args:
        asked: says what is to be found.
        job: as it is.
        some: the family of its memory, where codecs are to be found; else none.
        codecs: all that were measured, those of the family first.
        found: of these.
    """
    s, at = job.settings, {codec: number for number, codec in enumerate(codecs)}
    own = [at[codec] for codec in tensor_codecs(job)]
    costs = costs_of(found, own)
    now_s = predict(found.scenario, costs, s.comm_type, s.grouping).step_s
    stays = Plan(
        # What trial steps took is of before the drift.
        replace(job.chosen, step_s=now_s, trials=()) if job.chosen else None,
        replace(job.found, step_s=now_s, trials=()) if job.found else None,
        now_s,
    )
    chosen, then = None, job
    if some and job.chosen:
        hosts = job.chosen.hosts
        chosen = replace(promising(proposed(asked, some, found)).chosen, hosts=hosts)
        then = replace(job, settings=chosen.applied(s))
        costs = costs_of(found, [at[codec] for codec in tensor_codecs(then)])
    if not asked.grouping.searched:
        step_s = predict(found.scenario, costs, s.comm_type, s.grouping).step_s
        return stays, Plan(chosen and replace(chosen, step_s=step_s), None, step_s)
    cut = searched(then, asked.grouping.name, found.scenario, costs)
    cut = replace(cut, hosts=job.found.hosts if job.found else (), numbers=found.numbers)
    return stays, Plan(chosen and replace(chosen, step_s=cut.step_s), cut, cut.step_s)


def costs_of(found: Measured, picks: Sequence[int]) -> Costs:
    """Of an exchange in which each tensor has the codec of that number."""
    return combined_costs([CodecCandidate(costs, ()) for costs in found.costs], picks)


def timed(plan: Plan, took_s: float, since: int) -> Plan:
    """The plan with the time that it took to find; and, where it is new, the first step that it
    serves in, else 0.
    """
    chosen, found = plan.chosen, plan.found
    if chosen:
        chosen = replace(chosen, took_s=took_s, since=since or chosen.since)
    if found:
        found = replace(found, took_s=took_s, since=since or found.since)
    return replace(plan, chosen=chosen, found=found)
