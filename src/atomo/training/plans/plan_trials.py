"""Trials of plans: real steps by several candidates, before the run uses the best.

A prediction adds up measurements of single parts of a step. They do not contain the interference of
ranks that share cores, or of several messages on a network; a real step contains both. So the most
promising candidates take turns on a copy of the model, and the times of their steps decide.
"""

import gc
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from typing import Final, final

import torch

from atomo.config.comm_rules import has_master
from atomo.planning.comparison import MIN_GAIN
from atomo.planning.probe import preserved_state
from atomo.training.job.broadcasts import broadcast_json, receive_json
from atomo.training.job.job import Job, make_stages
from atomo.training.job.plan import Plan, TrialResult
from atomo.training.loop.master_stepper import MasterStepper
from atomo.training.loop.replica import TrainingReplica
from atomo.training.loop.worker import Worker
from atomo.training.plans.allowance import TimeLeft
from atomo.transports import Transport

__all__ = ["PlanCandidate", "Turns", "join_trials", "time_steps", "try_plans", "winner_first"]

DENSE: Final = "sgd"  # the codec of a plan without compression

FURTHEST: Final = 2.5  # times the best prediction; the worst measured error was a factor of 2.2
MOST: Final = 5  # candidates
# Candidates take turns, so that a changing load hits all alike. The best of several candidates that
# differ by chance looks better than it is: the finalists of the first turns take more turns.
TURNS, FINAL_TURNS, FINALISTS = 2, 4, 3
ABOUT_S: Final = 0.4  # of the steps of a turn
LEAST_STEPS, MOST_STEPS = 3, 8  # of a turn
STILL: Final = 1e-9  # a learning rate that keeps weights finite
LONGEST_S: Final = 30.0  # of all steps; slower steps are tried with fewer candidates

Turns = list[list[float]]
"""Seconds of the steps of each turn of one candidate."""


@final
@dataclass(frozen=True)
class PlanCandidate:
    """The settings that a plan changes, and the predicted time of a step."""

    name: str
    code: str
    code_for: str
    memory: str
    fusion: str
    predicted_s: float

    @property
    def changes(self) -> tuple[str, ...]:
        """The values that distinguish plans; the memory makes no difference to dense gradients."""
        dense = self.code == DENSE and not self.code_for
        return (self.code, self.code_for, "" if dense else self.memory, self.fusion)


def try_plans(
    draft: Job,
    transport: Transport,
    device: torch.device,
    plans: Sequence[PlanCandidate],
    limit: TimeLeft | None = None,
    overhead_s: float = 0.0,
) -> tuple[TrialResult, ...]:
    """Tries candidates on rank 0; all other ranks call `join_trials`.

    Args:
        draft: the job of all plans: data, model, and common settings.
        transport: connects the ranks; no message is under way.
        device: of this rank.
        plans: the candidates; the first is taken if no other gains enough.
        limit: time for the trials; None: no limit.
        overhead_s: time of a turn without its steps.

    Returns:
        The results of the plans that were tried, the winner's first. Empty if fewer than two plans
        are worth a trial, or if steps take too long for trials.
    """
    limit = TimeLeft(math.inf) if limit is None else limit
    tried = worth_trying(plans, min(LONGEST_S, limit.seconds), overhead_s)
    turns: list[Turns] = [[] for _ in tried]
    rounds, longest_s = 0, 0.0
    while tried and rounds < TURNS + FINAL_TURNS and limit.fits(longest_s):
        places = range(len(tried)) if rounds < TURNS else finalists(turns)
        began_s, candidates = limit.elapsed_s, [tried[place] for place in places]
        steps = steps_of(min(plan.predicted_s for plan in tried))
        results = play_turn(draft, transport, device, candidates, steps)
        for place, turn in zip(places, results, strict=True):
            turns[place] += turn
        rounds, longest_s = rounds + 1, max(longest_s, limit.elapsed_s - began_s)
    end_trials(draft, transport)
    if rounds <= TURNS:  # too few turns to distinguish a gain from chance
        return ()
    return winner_first([(plan.name, plan.predicted_s) for plan in tried], turns)


def time_steps(
    draft: Job, transport: Transport, device: torch.device, plan: PlanCandidate
) -> tuple[float, float]:
    """Times one turn by one candidate on rank 0; all other ranks call `join_trials`.

    Returns:
        Seconds of a step, and of a turn without its steps.
    """
    began = time.perf_counter()
    ((turn,),) = play_turn(draft, transport, device, [plan], LEAST_STEPS)
    end_trials(draft, transport)
    step_s = median_of([turn])
    return step_s, max(0.0, time.perf_counter() - began - (1 + LEAST_STEPS) * step_s)


def play_turn(
    draft: Job,
    transport: Transport,
    device: torch.device,
    plans: Sequence[PlanCandidate],
    steps: int,
) -> list[Turns]:
    """Takes a turn by each candidate, together with all other ranks."""
    broadcast_json(transport, {"plans": [*map(asdict, plans)], "steps": steps, "turns": 1})
    transport.drain(draft.settings.timeout)
    return turns_taken(draft, transport, device, plans, steps, 1)


def end_trials(draft: Job, transport: Transport) -> None:
    """Ends the trials on all other ranks."""
    broadcast_json(transport, {"plans": []})
    transport.drain(draft.settings.timeout)


def join_trials(draft: Job, transport: Transport, device: torch.device) -> None:
    """Takes part in trials, on every rank except rank 0."""
    while (order := receive_json(transport, draft.settings.timeout))["plans"]:
        plans = [PlanCandidate(**plan) for plan in order["plans"]]
        turns_taken(draft, transport, device, plans, order["steps"], order["turns"])


def worth_trying(
    plans: Sequence[PlanCandidate], limit_s: float = LONGEST_S, overhead_s: float = 0.0
) -> list[PlanCandidate]:
    """Returns the most promising candidates, as many as the time allows; of equal candidates only
    the first.
    """
    plans = distinct(plans)
    limit = FURTHEST * min(plan.predicted_s for plan in plans)
    near = [plan for plan in plans if plan.predicted_s <= limit]
    # The first candidate always has a place, since the others are compared with it.
    chosen = [*near[:1], *sorted(near[1:], key=lambda plan: plan.predicted_s)][:MOST]
    base, *challengers = chosen
    challengers.sort(key=lambda plan: plan.predicted_s)
    while challengers and least_s([base, *challengers], overhead_s) > limit_s:
        challengers.pop()
    chosen = [base, *challengers]
    return [plan for plan in plans if plan in chosen] if len(chosen) > 1 else []


def distinct(plans: Sequence[PlanCandidate]) -> list[PlanCandidate]:
    """Returns the candidates without those that have the changes of an earlier candidate."""
    unlike: dict[tuple[str, ...], PlanCandidate] = {}
    for plan in plans:
        unlike.setdefault(plan.changes, plan)
    return [*unlike.values()]


def least_s(plans: Sequence[PlanCandidate], overhead_s: float = 0.0) -> float:
    """Returns the predicted seconds of all turns with the fewest steps."""
    times = sorted((1 + LEAST_STEPS) * plan.predicted_s + overhead_s for plan in plans)
    return TURNS * sum(times) + FINAL_TURNS * sum(times[:FINALISTS])


def finalists(turns: Sequence[Turns]) -> list[int]:
    """Returns the first candidate, and the fastest of the others so far."""
    challengers = sorted(range(1, len(turns)), key=lambda number: median_of(turns[number]))
    return [0, *challengers[: FINALISTS - 1]]


def steps_of(predicted_s: float) -> int:
    """Returns the number of timed steps of a turn."""
    return max(LEAST_STEPS, min(MOST_STEPS, math.ceil(ABOUT_S / max(predicted_s, 1e-6))))


def turns_taken(
    draft: Job,
    transport: Transport,
    device: torch.device,
    plans: Sequence[PlanCandidate],
    steps: int,
    turns: int,
) -> list[Turns]:
    """Returns, for each candidate, the seconds of each turn's steps except the first; no times on
    a worker.
    """
    turns_by_plan: list[Turns] = [[] for _ in plans]
    for _ in range(turns):
        for plan, times in zip(plans, turns_by_plan, strict=True):
            with preserved_state(draft.model):
                times.append([*step_times(job_of(draft, plan), transport, device, 1 + steps)][1:])
            transport.drain(draft.settings.timeout)
            gc.collect()  # a replica has cycles, and the next replica needs its memory
    return turns_by_plan


def job_of(draft: Job, plan: PlanCandidate) -> Job:
    """Builds a job by a candidate, on a copy of the model, without effect on the run."""
    settings = replace(
        draft.settings, code=plan.code, code_for=plan.code_for, memory=plan.memory,
        fusion=plan.fusion, code_schedule="", dense_steps=0, dump_every=0, log_format="text",
        lr=min(draft.settings.learning_rate, STILL), lr_end=0.0,
    ).resolved()  # fmt: skip
    model = deepcopy(draft.model)
    stages = make_stages(settings, model, draft.steps_per_epoch)
    return replace(draft, settings=settings, model=model, stages=stages, plan=Plan(), again=None)


def step_times(job: Job, transport: Transport, device: torch.device, steps: int) -> Iterator[float]:
    """Yields the seconds of each step of the first rank, or of a rank without a master."""
    if not has_master(job.settings.comm_type):
        replica = TrainingReplica(job, transport, device)
        yield from [replica.take_step().step_s for _ in range(steps)]
        replica.close()
    elif transport.rank:
        Worker(job, transport, device).run()
    else:
        stepper = MasterStepper(job, transport, device, trial=True)
        stepper.server.check_initial_weights(stepper.weights.flat)
        yield from [stepper.take_step(1 + step).step_s for step in range(steps)]
        stepper.server.stop()


def winner_first(
    plans: Sequence[tuple[str, float]], turns: Sequence[Turns]
) -> tuple[TrialResult, ...]:
    """Returns the results of plans: the winner's first, the others in their order.

    The winner is the fastest plan of those with the most turns. But the first plan wins unless the
    fastest gains enough, and was faster in most of the turns that both took.

    Args:
        plans: name and predicted seconds of each.
        turns: of each plan.
    """
    trials = [
        TrialResult(name, predicted_s, median_of(times))
        for (name, predicted_s), times in zip(plans, turns, strict=True)
    ]
    if not trials:
        return ()
    maximum = max(map(len, turns))
    last = [number for number, times in enumerate(turns) if len(times) == maximum]
    best = min(last, key=lambda number: trials[number].taken_s)
    gains = trials[best].taken_s * MIN_GAIN < trials[0].taken_s
    best = best if gains and wins(turns[best], turns[0]) else 0
    return (trials[best], *trials[:best], *trials[best + 1 :])


def median_of(turns: Turns) -> float:
    """Returns the median of all steps; 0 if there are none."""
    steps = [seconds for turn in turns for seconds in turn]
    return statistics.median(steps) if steps else 0.0


def wins(turns: Turns, rival_turns: Turns) -> bool:
    """Returns True if steps were shorter than a rival's in at least two of three turns."""
    faster = [
        median_of([turn]) < median_of([rival])
        for turn, rival in zip(turns, rival_turns, strict=True)
    ]
    return 3 * sum(faster) >= 2 * len(faster)
