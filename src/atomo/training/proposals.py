"""Which codecs `--code auto` may take, and what speaks for each of these choices."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final, final

from atomo.budget import LOSSLESS, Family
from atomo.codecs import Codec
from atomo.codecs.dense_fallback import goes_dense
from atomo.config import Settings
from atomo.planning.assignment import (
    CodecAssignment,
    CodecCandidate,
    assign_codecs,
    assign_one,
    combined_costs,
)
from atomo.planning.comparison import MIN_GAIN
from atomo.planning.prediction import predict
from atomo.training.chosen import Chosen, said
from atomo.training.measuring import Measured
from atomo.training.rehearsal import Contender

__all__ = ["Proposal", "codecs_of", "promising", "proposed"]

DENSE: Final = "dense"


@final
@dataclass(frozen=True)
class Proposal:
    """Codecs that a run may take, and its messages with them."""

    name: str
    chosen: Chosen
    fusion: str

    def plan(self, settings: Settings) -> Contender:
        """To be tried."""
        then = self.chosen.applied(settings)
        words = then.code, then.code_for, then.memory, self.fusion
        return Contender(self.name, *words, self.chosen.step_s)


def codecs_of(some: Sequence[Family]) -> list[Codec[Any]]:
    """All that are measured, each once; those of each family in turn, since time may be short."""
    turns = zip_longest(*(family.codecs for family in some))
    return [*dict.fromkeys(codec for turn in turns for codec in turn if codec is not None)]


def promising(proposals: Sequence[Proposal], worth: float = MIN_GAIN) -> Proposal:
    """The best prediction; or the first, which is dense, where that gains next to nothing on it.

    Args:
        proposals: the first of them dense.
        worth: dense steps in the time of one, from which on it gains.
    """
    first = proposals[0]
    best = min(proposals, key=lambda one: one.chosen.step_s)
    return best if best.chosen.step_s * worth < first.chosen.step_s else first


def proposed(settings: Settings, some: Sequence[Family], found: Measured) -> list[Proposal]:
    """Dense gradients; and of each family the fastest choice, and each of its codecs for all
    tensors, as far as errors keep within the budget.
    """
    proposer = Proposer(settings, found)
    every = [proposer.dense(some[0])]
    for family in some:
        every += proposer.of(family)
    unlike: dict[tuple[tuple[str, ...], str], Proposal] = {}
    for one in every:
        codes = tuple(one.chosen.codes.values())
        dense = all(code == LOSSLESS for code in codes)  # whose memory keeps nothing back
        unlike.setdefault((codes, "" if dense else one.chosen.memory), one)
    return [*unlike.values()]


@final
class Proposer:
    """Makes them from what was measured."""

    def __init__(self, settings: Settings, found: Measured) -> None:
        self._settings, self._found = settings, found
        self._at = {costs.spec: number for number, costs in enumerate(found.costs)}
        # Messages that are searched for are found once the codecs are known.
        self._grouping = None if settings.grouping.searched else settings.grouping
        self._dense_s = 0.0

    def dense(self, family: Family) -> Proposal:
        """Float32 for all; the first to be made, since others are held against it."""
        found = self._alone(family.codecs[0])
        self._dense_s = found.step_s
        return self._proposal(DENSE, family, family.codecs[:1], found)

    def of(self, family: Family) -> Iterator[Proposal]:
        """Those of a family."""
        candidates = [self._candidate(codec) for codec in family.codecs]
        for codec, candidate in zip(family.codecs[1:], candidates[1:], strict=True):
            if sum(candidate.errors) <= family.budget:
                alone = self._alone(codec)
                yield self._proposal(named(str(codec), family), family, (codec,), alone)
        name = self._settings.comm_type
        best = assign_codecs(self._found.scenario, candidates, name, self._grouping, family.budget)
        yield self._proposal(named("mixed", family), family, family.codecs, best)

    def _candidate(self, codec: Codec[Any]) -> CodecCandidate:
        at, workers = self._at[str(codec)], self._found.scenario.workers
        return CodecCandidate(self._found.costs[at], self._found.losses[at].of_mean(workers))

    def _alone(self, codec: Codec[Any]) -> CodecAssignment:
        scenario, name = self._found.scenario, self._settings.comm_type
        return assign_one(scenario, self._candidate(codec), name, self._grouping)

    def _proposal(
        self, name: str, family: Family, codecs: Sequence[Codec[Any]], choice: CodecAssignment
    ) -> Proposal:
        gradient = self._found.scenario.profile.gradient
        picks = zip(reversed(gradient.items()), choice.picks, strict=True)
        codes = {n: str(codecs[pick]) for (n, one), pick in picks if not goes_dense(one.shape)}
        chosen = Chosen(
            codes, family.memory, choice.error, family.budget, choice.step_s, self._dense_s, 0.0,
            said(self._settings),
        )  # fmt: skip
        return Proposal(name, chosen, self._fusion(codecs, choice))

    def _fusion(self, codecs: Sequence[Codec[Any]], choice: CodecAssignment) -> str:
        """The messages that its prediction is of."""
        if self._grouping is not None:
            return self._settings.fusion
        costs = combined_costs([self._candidate(codec) for codec in codecs], choice.picks)
        return str(predict(self._found.scenario, costs, self._settings.comm_type).grouping)


def named(name: str, family: Family) -> str:
    """With the memory, since families have codecs in common."""
    return name if family.memory == "none" else f"{name} + {family.memory}"
