"""The decision which steps count after a death, as pure functions of all ranks' progress.

A rank sends its report of a step once it has the whole mean, and commits the step once it has the
reports of all members. If any rank has committed a step, every rank has its mean. So if a living
rank has committed the step, all others commit it too, with the reports of that rank; if none has,
the step continues without the dead.

Spares take the slots of the dead before a step that no member has begun: a verdict after a death
names that step, and all members meet there.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

from atomo.exchange.report import Report

__all__ = ["RankProgress", "Reports", "Verdict", "decide", "fill_slots", "membership_notes"]

Reports = Mapping[int, Report]
"""Reports by job rank."""


@final
@dataclass(frozen=True)
class RankProgress:
    """A rank's progress when a step is interrupted."""

    done: int
    """The last committed step."""
    reports: Reports
    """The reports of that step."""


@final
@dataclass(frozen=True)
class Verdict:
    """The decision that all living members follow."""

    step: int
    """The last committed step, for all members."""
    reports: Reports
    """The reports of that step."""
    members: tuple[int, ...]
    """The ranks that continue."""
    first_step: int
    """First step of which these members divide the images."""
    waiting: tuple[int, ...] = ()
    """The spares."""


def decide(
    progress: Mapping[int, RankProgress],
    waiting: Sequence[int] = (),
    first_step: int | None = None,
    open_steps: int = 1,
) -> Verdict:
    """Returns the verdict on the progress of all living members, by rank.

    Args:
        progress: their progress.
        waiting: the spares.
        first_step: a step that no member has begun, as all meet before it. None: no such step; the
            images of the open step are already divided, and some members may have computed their
            part.
        open_steps: the steps that members may have begun beyond the last committed step.
    """
    furthest = max(progress.values(), key=lambda rank: rank.done)
    # A new split begins with the step after the open steps at the earliest.
    first = furthest.done + 1 + open_steps if first_step is None else first_step
    return Verdict(furthest.done, furthest.reports, tuple(sorted(progress)), first, tuple(waiting))


def fill_slots(verdict: Verdict, slots: int) -> Verdict:
    """Returns the verdict after spares have taken the free slots, lowest rank first."""
    free = max(0, slots - len(verdict.members))
    members = sorted(verdict.members + verdict.waiting[:free])
    return replace(verdict, members=tuple(members), waiting=verdict.waiting[free:])


def membership_notes(
    before: Sequence[int], verdict: Verdict, slots: int, unit: str = "step"
) -> Iterator[str]:
    """Yields a message for each rank that died or joined.

    Args:
        before: the members before the verdict.
        verdict: the verdict.
        slots: slots of the job.
        unit: the name of what verdicts count: "step", or "round" with local steps.
    """
    survivors, joined = {*before} & {*verdict.members}, {*verdict.members} - {*before}
    from_then_on = f"from {unit} {verdict.first_step} on"
    for count, rank in enumerate(sorted({*before} - survivors), 1):
        # Spares replace the dead in the order of their ranks.
        replaced = slots - len(before) + count <= len(joined) + len(verdict.waiting)
        consequence = "a spare takes its place" if replaced else "share its samples"
        yield (
            f"rank {rank} is gone; {len(survivors)} of {slots} ranks continue, and {consequence} "
            f"{from_then_on}"
        )
    for rank in sorted(joined):
        yield f"rank {rank}, a spare, takes part {from_then_on}"
