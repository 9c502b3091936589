"""The rounds of a run: the steps that each takes, and the times of its exchange.

A round of one step averages the gradients of that step. A round of local steps averages differences
of weights, those of one fragment of the model or of all of it. A round ends where its phase ends
and at the last step of the run, too, with an exchange of the whole model.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, final, runtime_checkable

import torch
from torch import Tensor

from atomo.options.local_steps import LocalPhase

__all__ = ["Round", "RoundPlan", "RoundResult", "RoundSource", "correlation", "make_round_plan"]


@final
@dataclass(frozen=True)
class Round:
    """The steps of one exchange."""

    number: int
    """Counts from 1. Exchanges have the numbers of their rounds."""
    first: int
    last: int
    """The steps of the round. The mean is applied after the last one."""
    begins: int
    """The step after which the exchange begins."""
    is_local: bool
    """True if the round averages differences of weights; False: gradients."""
    fragment: int | None
    """The fragment that is exchanged; None: the whole model."""
    ends_phase: bool
    """True if all replicas have the anchor after the round, whatever the fragments and the mix."""
    is_late: bool = False
    """True if the exchange continues during the next round, after whose last step its mean is
    applied; in the last round of a phase, after the round itself.
    """

    @property
    def steps(self) -> int:
        """The number of steps."""
        return self.last - self.first + 1


@runtime_checkable
class RoundSource(Protocol):
    """The rounds of a run, as far as they are known."""

    def at(self, step: int) -> Round:
        """Returns the round of a step; steps count from 1."""

    def numbered(self, number: int) -> Round:
        """Returns the round with a number."""


@final
@dataclass(frozen=True)
class RoundResult:
    """The figures of a finished round."""

    number: int
    steps: int
    correlation: float | None
    """Correlation of the mean difference with that of the round before; None: there is none."""
    outer_rate: float
    """The effective rate of the outer optimizer at this correlation."""
    steps_of: tuple[int, ...] = ()
    """The local steps of each rank that counted, where ranks take different numbers."""


def correlation(pairs: Iterable[tuple[Tensor, Tensor]]) -> float | None:
    """Returns the correlation of two mean differences, from their parts; None: one is zero."""
    products = [(mean.dot(before), mean.dot(mean), before.dot(before)) for mean, before in pairs]
    sums = torch.tensor([[float(value) for value in row] for row in products]).double().sum(0)
    product, square, earlier = sums.tolist()
    norm = math.sqrt(square * earlier)
    return max(-1.0, min(1.0, product / norm)) if norm else None


@final
@dataclass(frozen=True)
class PlannedPhase:
    """Rounds of equal length, from a step on."""

    first_step: int
    every: int
    fragments: int
    is_local: bool

    @property
    def period(self) -> int:
        """The number of steps from one exchange to the next."""
        return self.every // self.fragments


@final
@dataclass(frozen=True)
class RoundPlan:
    """The rounds of a run, a pure function of the step."""

    phases: tuple[PlannedPhase, ...]
    last_step: int
    overlap: int = 0
    """The number of steps between the beginning and the end of an exchange."""
    is_late: bool = False
    """True if an exchange takes the whole next round."""

    def at(self, step: int) -> Round:
        """Returns the round of a step; steps count from 1."""
        before = 0
        for phase, end in self._phases():
            if step <= end or phase is self.phases[-1]:
                return self._round(phase, (step - phase.first_step) // phase.period, before)
            before += count_of(phase, end)
        raise AssertionError("a plan has a phase")

    def numbered(self, number: int) -> Round:
        """Returns the round with a number."""
        before = 0
        for phase, end in self._phases():
            count = count_of(phase, end)
            if number <= before + count or phase is self.phases[-1]:
                return self._round(phase, number - before - 1, before)
            before += count
        raise AssertionError("a plan has a phase")

    def _phases(self) -> Iterator[tuple[PlannedPhase, int]]:
        """Yields each phase with its last step."""
        ends = [min(phase.first_step - 1, self.last_step) for phase in self.phases[1:]]
        yield from zip(self.phases, [*ends, self.last_step], strict=True)

    def _round(self, phase: PlannedPhase, index: int, before: int) -> Round:
        """Returns the round with this index in a phase, after `before` rounds of other phases."""
        first = phase.first_step + index * phase.period
        end = next(end for other, end in self._phases() if other is phase)
        last = first + phase.period - 1
        # A run that is continued beyond its last step has whole rounds again.
        cut = last >= end >= first
        last = min(last, end) if cut else last
        whole = cut or phase.fragments == 1
        overlap = 0 if cut else self.overlap
        fragment = None if whole else index % phase.fragments
        begins = last - overlap
        number, late = before + index + 1, self.is_late and phase.is_local
        return Round(number, first, last, begins, phase.is_local, fragment, cut, late)


def count_of(phase: PlannedPhase, end: int) -> int:
    """Counts the rounds of a phase that ends with a step."""
    return max(0, math.ceil((end - phase.first_step + 1) / phase.period))


def make_round_plan(
    phases: Sequence[LocalPhase],
    steps_per_epoch: int,
    last_step: int,
    *,
    fragments: int = 1,
    overlap: int | str = 0,
    is_late: bool = False,
    is_local: Callable[[int], bool] = lambda every: every > 1,
) -> RoundPlan:
    """Returns the rounds of a run.

    >>> plan = make_round_plan([LocalPhase(0.0, 1), LocalPhase(0.5, 4)], 10, 12)
    >>> [(plan.at(step).number, plan.at(step).last) for step in (5, 6, 9, 10, 12)]
    [(5, 5), (6, 9), (6, 9), (7, 12), (7, 12)]

    Args:
        phases: the numbers of steps in a round, by epoch.
        steps_per_epoch: the number of steps in an epoch.
        last_step: the last step of the run.
        fragments: the number of fragments that rounds of local steps exchange in turn.
        overlap: the number of steps between the beginning and the end of an exchange.
        is_late: True if an exchange takes the whole next round, whatever the overlap.
        is_local: returns True if rounds of so many steps average differences of weights.
    """
    found: list[PlannedPhase] = []
    for phase in phases:
        first = 1 + math.ceil(phase.epoch * steps_per_epoch)
        if found and found[-1].first_step == first:
            found.pop()  # it has no step
        local = is_local(phase.every)
        found.append(PlannedPhase(first, phase.every, fragments if local else 1, local))
    steps = overlap if isinstance(overlap, int) and not is_late else 0
    return RoundPlan(tuple(found), last_step, steps, is_late)
