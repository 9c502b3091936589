"""Real steps by several plans, before the run is given to one of them.

A prediction adds up what was measured part by part. What ranks do to each other that share cores,
and what a network does with several messages at once, is in none of the parts; it is in a step. So
the plans that promise most are tried, in turns, on a copy of the model, and what steps take decides
among them.
"""

import gc
import math
import time
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from typing import Final, final

import torch

from atomo.probing import preserved_state
from atomo.roles import has_master
from atomo.training.allowance import TimeLeft
from atomo.training.job import Job, make_stages
from atomo.training.leader import Leader
from atomo.training.replica import Replica
from atomo.training.telling import hear, tell
from atomo.training.trials import Trial, Turns, median_of, winner_first
from atomo.training.worker import Worker
from atomo.transports import Transport

__all__ = ["DENSE", "Contender", "join_rehearsal", "rehearse", "time_steps"]

DENSE: Final = "sgd"  # the codec of a plan in which nothing is compressed

FURTHEST: Final = 2.5  # times the best prediction; the worst ever seen was off by 2.2
MOST: Final = 5  # plans
# Turns, so that load which changes meets all plans alike. The best of several that differ by chance
# looks better than it is, so those that are left after the first turns have more.
TURNS, FINAL_TURNS, FINALISTS = 2, 4, 3
ABOUT_S: Final = 0.4  # of the steps of a turn
LEAST_STEPS, MOST_STEPS = 3, 8  # of a turn
STILL: Final = 1e-9  # a learning rate by which no weights leave what is finite
LONGEST_S: Final = 30.0  # of all steps; what is slower is tried with fewer plans


@final
@dataclass(frozen=True)
class Contender:
    """A plan: what it changes of the settings, and what a step by it is predicted to take."""

    name: str
    code: str
    code_for: str
    memory: str
    fusion: str
    predicted_s: float

    @property
    def changes(self) -> tuple[str, ...]:
        """Values that tell plans apart; a memory does not where every gradient is dense."""
        dense = self.code == DENSE and not self.code_for
        return (self.code, self.code_for, "" if dense else self.memory, self.fusion)


def rehearse(
    draft: Job,
    transport: Transport,
    device: torch.device,
    plans: Sequence[Contender],
    left: TimeLeft | None = None,
    overhead_s: float = 0.0,
) -> tuple[Trial, ...]:
    """Rank 0's part; all others call `join_rehearsal`.

    Args:
        draft: of all plans: data, model, and the settings that they have in common.
        transport: connects the ranks; nothing is under way.
        device: where this rank computes.
        plans: first the one to be had where others gain next to nothing on it.
        left: time for it; None: as much as it takes.
        overhead_s: of a turn, beside its steps.

    Returns:
        What became of each plan that was tried, the one to take first; none where only one of them
        promises anything, or steps take too long to try them.
    """
    left = TimeLeft(math.inf) if left is None else left
    chosen = worth_trying(plans, min(LONGEST_S, left.seconds), overhead_s)
    turns: list[Turns] = [[] for _ in chosen]
    rounds, longest_s = 0, 0.0
    while chosen and rounds < TURNS + FINAL_TURNS and left.fits(longest_s):
        places = range(len(chosen)) if rounds < TURNS else finalists(turns)
        began_s, some = left.elapsed_s, [chosen[at] for at in places]
        steps = steps_of(min(plan.predicted_s for plan in chosen))
        for at, found in zip(places, played(draft, transport, device, some, steps), strict=True):
            turns[at] += found
        rounds, longest_s = rounds + 1, max(longest_s, left.elapsed_s - began_s)
    ended(draft, transport)
    if rounds <= TURNS:  # too few of them to tell a gain from chance
        return ()
    return winner_first([(plan.name, plan.predicted_s) for plan in chosen], turns)


def time_steps(
    draft: Job, transport: Transport, device: torch.device, plan: Contender
) -> tuple[float, float]:
    """Rank 0's part of one turn by one plan; all others call `join_rehearsal`.

    Returns:
        Seconds of a step, and of all else that a turn takes.
    """
    began = time.perf_counter()
    ((found,),) = played(draft, transport, device, [plan], LEAST_STEPS)
    ended(draft, transport)
    step_s = median_of([found])
    return step_s, max(0.0, time.perf_counter() - began - (1 + LEAST_STEPS) * step_s)


def played(
    draft: Job, transport: Transport, device: torch.device, plans: Sequence[Contender], steps: int
) -> list[Turns]:
    """A turn by each plan, which all other ranks join in."""
    tell(transport, {"plans": [*map(asdict, plans)], "steps": steps, "turns": 1})
    transport.drain(draft.settings.timeout)
    return turns_taken(draft, transport, device, plans, steps, 1)


def ended(draft: Job, transport: Transport) -> None:
    """Tells all other ranks that no plan is left to try."""
    tell(transport, {"plans": []})
    transport.drain(draft.settings.timeout)


def join_rehearsal(draft: Job, transport: Transport, device: torch.device) -> None:
    """The part of all ranks but the first."""
    while (told := hear(transport, draft.settings.timeout))["plans"]:
        plans = [Contender(**plan) for plan in told["plans"]]
        turns_taken(draft, transport, device, plans, told["steps"], told["turns"])


def worth_trying(
    plans: Sequence[Contender], limit_s: float = LONGEST_S, overhead_s: float = 0.0
) -> list[Contender]:
    """Those that may turn out to be the best, as many of them as there is time for; of plans that
    change the same, the first.
    """
    plans = distinct(plans)
    limit = FURTHEST * min(plan.predicted_s for plan in plans)
    near = [plan for plan in plans if plan.predicted_s <= limit]
    # The first has a place before better predictions: it is what they are held against.
    kept = [*near[:1], *sorted(near[1:], key=lambda plan: plan.predicted_s)][:MOST]
    base, *others = kept
    others.sort(key=lambda plan: plan.predicted_s)
    while others and least_s([base, *others], overhead_s) > limit_s:
        others.pop()
    kept = [base, *others]
    return [plan for plan in plans if plan in kept] if len(kept) > 1 else []


def distinct(plans: Sequence[Contender]) -> list[Contender]:
    """Plans without those that change the same as one before them."""
    unlike: dict[tuple[str, ...], Contender] = {}
    for plan in plans:
        unlike.setdefault(plan.changes, plan)
    return [*unlike.values()]


def least_s(plans: Sequence[Contender], overhead_s: float = 0.0) -> float:
    """What all turns are predicted to take, with the fewest steps of a turn."""
    times = sorted((1 + LEAST_STEPS) * plan.predicted_s + overhead_s for plan in plans)
    return TURNS * sum(times) + FINAL_TURNS * sum(times[:FINALISTS])


def finalists(turns: Sequence[Turns]) -> list[int]:
    """The first, and those that were the fastest until now."""
    others = sorted(range(1, len(turns)), key=lambda at: median_of(turns[at]))
    return [0, *others[: FINALISTS - 1]]


def steps_of(predicted_s: float) -> int:
    """Steps of a turn that count."""
    return max(LEAST_STEPS, min(MOST_STEPS, math.ceil(ABOUT_S / max(predicted_s, 1e-6))))


def turns_taken(
    draft: Job,
    transport: Transport,
    device: torch.device,
    plans: Sequence[Contender],
    steps: int,
    turns: int,
) -> list[Turns]:
    """Of each plan seconds of the steps of each turn, but for its first; on a worker, none."""
    taken: list[Turns] = [[] for _ in plans]
    for _ in range(turns):
        for plan, found in zip(plans, taken, strict=True):
            with preserved_state(draft.model):
                found.append([*step_times(job_of(draft, plan), transport, device, 1 + steps)][1:])
            transport.drain(draft.settings.timeout)
            gc.collect()  # a replica has cycles, and the next one needs the room
    return taken


def job_of(draft: Job, plan: Contender) -> Job:
    """A job by a plan, on a model of its own, that leaves nothing behind."""
    settings = replace(
        draft.settings, code=plan.code, code_for=plan.code_for, memory=plan.memory,
        fusion=plan.fusion, code_schedule="", dense_steps=0, dump_every=0, log_format="text",
        lr=min(draft.settings.learning_rate, STILL), lr_end=0.0,
    ).resolved()  # fmt: skip
    model = deepcopy(draft.model)
    stages = make_stages(settings, model, draft.steps_per_epoch)
    return replace(
        draft, settings=settings, model=model, stages=stages, chosen=None, found=None, again=None
    )


def step_times(job: Job, transport: Transport, device: torch.device, steps: int) -> Iterator[float]:
    """Seconds of each step of the first rank, or of one without a master."""
    if not has_master(job.settings.comm_type):
        replica = Replica(job, transport, device)
        yield from [replica.take_step().step_s for _ in range(steps)]
        replica.close()
    elif transport.rank:
        Worker(job, transport, device).run()
    else:
        leader = Leader(job, transport, device)
        yield from [leader.take_step().step_s for _ in range(steps)]
        leader.stop()
