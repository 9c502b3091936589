"""Tables of the result of a run, and its goals."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from parts.chaos.verdict import PROCESSES, SURVIVED, WHOLE, Result

__all__ = ["Goal", "goals", "table"]

FAULTS_A_MINUTE = 4.0  # 120 in half an hour
GOODPUT = 0.98
DEAD_S, LOST_S = 1.0, 15.0
QUIET = 0.05  # the difference allowed between two rates without faults on an idle machine


@final
@dataclass(frozen=True)
class Goal:
    """A goal beyond the guarantees of the documentation."""

    what: str
    outcome: str
    met: bool | None
    """None: not tried."""


def goals(result: Result) -> list[Goal]:
    """Compares a result with all goals."""
    part = result.stretches[PROCESSES]
    minimum = int(FAULTS_A_MINUTE * result.seconds / 60)
    count = len(result.faults)
    return [
        Goal(f"at least {minimum} faults", str(count), count >= minimum),
        Goal(
            f"goodput beside faults of processes >= {GOODPUT:.0%}",
            f"{part.goodput:.1%} of {part.seconds:.0f} s",
            part.goodput >= GOODPUT if part.seconds else None,
        ),
        within("a dead worker costs", DEAD_S, result.costs(["kill"], restarted=False)),
        within("a lost host costs", LOST_S, result.costs(["partition"], restarted=True)),
        within("a lost master costs", LOST_S, result.costs(["master", "torn"], restarted=True)),
        Goal("no hang, nothing lost, accuracy as without", "; ".join(result.wrong) or "none",
             not result.wrong),
    ]  # fmt: skip


def within(name: str, bound_s: float, costs: Sequence[float]) -> Goal:
    """Returns the goal that all costs are below a bound."""
    below = sum(cost < bound_s for cost in costs)
    outcome = f"{below} of {len(costs)}; {spread(costs)}" if costs else "not tried"
    return Goal(f"{name} < {bound_s:g} s", outcome, below == len(costs) if costs else None)


def spread(costs: Sequence[float]) -> str:
    """Returns the median and the maximum of costs."""
    return f"median {statistics.median(costs):.2f} s, most {max(costs):.2f} s"


def table(result: Result) -> str:
    """Returns the result and the goals in Markdown."""
    return "\n".join([*of_faults(result), "", *of_steps(result), "", *of_goals(result)])


def of_faults(result: Result) -> list[str]:
    rows = [
        "| fault | times | started again | cost, s: median, most |",
        "| --- | --- | --- | --- |",
    ]
    for name in dict.fromkeys(fault.fault for fault in result.faults):
        for again in (False, True):
            if costs := result.costs([name], restarted=again):
                cost = f"{statistics.median(costs):.2f}, {max(costs):.2f}"
                rows.append(f"| {name} | {len(costs)} | {'yes' if again else 'no'} | {cost} |")
    return rows


def of_steps(result: Result) -> list[str]:
    restarts = sum(fault.restarted for fault in result.faults)
    rows = [
        f"{len(result.faults)} faults in {result.seconds / 60:.1f} minutes, {restarts} of which "
        f"made the job start again; {result.refused} frames refused",
    ]
    rows += [
        f"steps, {name}: {part.steps} of {part.steps_without:.0f} without faults in "
        f"{part.seconds:.0f} s, goodput {part.goodput:.1%}"
        for name, part in ((name, result.stretches[name]) for name in (WHOLE, SURVIVED, PROCESSES))
    ]
    if unreported := [fault.fault for fault in result.faults if not fault.reported]:
        rows.append(f"no line speaks of: {', '.join(unreported)}")
    if rates := result.rates_without:
        speeds = " and ".join(f"{rate:.2f}" for rate in rates)
        calm = max(rates) <= (1 + QUIET) * min(rates)
        noisy = "" if calm else "; the machine was not quiet, so that goodput is unreliable"
        rows.append(f"without faults, before and after: {speeds} steps/s{noisy}")
    rows.append(f"accuracy: {result.accuracy:.2%}, without faults {result.accuracy_without:.2%}")
    return rows


def of_goals(result: Result) -> list[str]:
    words = {True: "met", False: "missed", None: "-"}
    checked = goals(result)
    rows = ["| goal | found | |", "| --- | --- | --- |"]
    rows += [f"| {goal.what} | {goal.outcome} | {words[goal.met]} |" for goal in checked]
    tried = [goal for goal in checked if goal.met is not None]
    met = f"{sum(goal.met is True for goal in tried)} of {len(tried)} goals met"
    promises = "broken, see above" if result.wrong else "nothing promised was broken"
    return [*rows, "", f"verdict: {met}; {promises}"]
