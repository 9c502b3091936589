"""Rounds of a given time, in which faster ranks take more local steps.

The first round has the steps of `--local-steps`, the same on each rank. Each report of a round has
the median seconds of a local step of its rank, and all ranks have all reports. So all of them know
the steps of the next round, and who takes which batches, without another message.
"""

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Final, final

import torch
from torch import Tensor

from atomo.config.settings import Settings
from atomo.errors import CheckpointError
from atomo.exchange.sharing import part
from atomo.training.job.batch_deal import BatchTurn, counts, seconds_of, steps_in, turns
from atomo.training.job.job import Job
from atomo.training.job.round_plan import Round

__all__ = ["PACE", "PacedRounds", "clock_of", "paces"]

KEPT: Final = 1000  # rounds that ended
REMEMBERED: Final = 8  # local steps before the present round, of which the seconds are known
PACE: Final = "pace"  # in a state of an exchange: a round, and the seconds of each rank


def paces(settings: Settings) -> bool:
    """Returns True if rounds have a given time."""
    return settings.local_seconds > 0 and settings.has_local_steps


def clock_of(rank: int) -> Callable[[], float]:
    """Returns the clock by which a rank times its local steps."""
    del rank  # ranks of a test have clocks of their own
    return time.perf_counter


@final
class PacedRounds:
    """The rounds of one rank, and its turns in them."""

    def __init__(self, job: Job, rank: int) -> None:
        """Creates the rounds of a run before its first step."""
        self._plan, self._limit_s = job.rounds, job.settings.local_seconds
        self._rank, self._clock = rank, clock_of(rank)
        self._known: Mapping[int, float] = {}  # seconds of a local step, by rank
        self._round: Round | None = None  # the present one, or the next one; None: as planned
        self._own_s: list[float] = []  # the seconds of local steps, of this round and a few before
        self._turns: Iterator[BatchTurn] | None = None  # of the round; None: not yet dealt
        self._next: BatchTurn | None = None
        self._ended: deque[Round] = deque(maxlen=KEPT)

    def at(self, step: int) -> Round:
        """Returns the round of a step that was just taken, or that comes next."""
        paced, planned = self._round, self._plan.at(step)
        if paced is None:
            return planned
        if step >= paced.first:
            return paced
        for ended in reversed(self._ended):
            if ended.first <= step <= ended.last:
                return ended
        return Round(paced.number - 1, step, step, step, planned.is_local, None, ends_phase=True)

    def numbered(self, number: int) -> Round:
        """Returns the round with a number: the present one, or one of the last that ended."""
        known = [*self._ended, *([] if self._round is None else [self._round])]
        return next((each for each in known if each.number == number), self._plan.numbered(number))

    def batches(
        self, step: int, ranks: Sequence[int]
    ) -> Iterator[tuple[int, tuple[int, int] | None]]:
        """Yields the worker whose batch of a step this rank takes, as often as it is this rank's
        turn, with the step and the worker of its next turn.

        Args:
            step: the step.
            ranks: the ranks that share the round.
        """
        if self._turns is None:
            self._deal(ranks)
        workers = [1 + rank for rank in ranks]
        while self._next and self._next[0] <= step:
            turn, self._next = self._next, next(self._turns or iter(()), None)
            if turn[0] == step:  # a resumed round has turns that were taken before
                following = self._next and (self._next[0], workers[self._next[1]])
                yield workers[turn[1]], following

    def _deal(self, ranks: Sequence[int]) -> None:
        """Deals the batches of the round that begins."""
        round_, seconds = self._round, seconds_of(ranks, self._known)
        assert round_ is not None, "a round begins with `begin`"
        self._turns = turns(seconds, ranks.index(self._rank), round_.first, round_.steps)
        self._next = next(self._turns, None)

    def begin(self, step: int) -> None:
        """Begins the first round of local steps with a step, unless a round is open."""
        self._round = self._round or self._plan.at(step)

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Notes the seconds of a local step."""
        started = self._clock()
        yield
        self._own_s.append(self._clock() - started)

    @property
    def step_s(self) -> float:
        """The median seconds of a local step of this rank, in the present round and in its last
        steps before.
        """
        return median(self._own_s) if self._own_s else self._known.get(self._rank, 0.0)

    @property
    def present(self) -> tuple[int, int]:
        """The first and the last step of the present round."""
        assert self._round is not None, "a round begins with `begin`"
        return self._round.first, self._round.last

    @property
    def seconds(self) -> Mapping[int, float]:
        """The seconds of a local step in the last round, by rank."""
        return self._known

    def images_of(self, ranks: Sequence[int], images: int) -> list[int]:
        """Returns the samples of each rank in the present round.

        Args:
            ranks: the ranks that share the round.
            images: the samples of a step.
        """
        steps, among = 0 if self._round is None else self._round.steps, len(ranks)
        sizes = [len(part(images, place, among)) for place in range(among)]
        seconds = seconds_of(ranks, self._known)
        own = [turns(seconds, place, 1, steps) for place in range(among)]
        return [sum(sizes[place] for _, place in each) for each in own]

    def steps_of(self, ranks: Sequence[int], counted: Collection[int]) -> tuple[int, ...]:
        """Returns the local steps in the present round of each rank that counted.

        Args:
            ranks: the ranks that share the round.
            counted: some of these ranks.
        """
        steps = 0 if self._round is None else self._round.steps
        dealt = counts(seconds_of(ranks, self._known), steps)
        return tuple(n for rank, n in zip(ranks, dealt, strict=True) if rank in counted)

    def follow(self, round_: Round, seconds: Mapping[int, float]) -> None:
        """Begins a round that a master determined.

        Args:
            round_: the round.
            seconds: of a local step, by rank.
        """
        if self._round is not None and self._round.number < round_.number:
            self._ended.append(self._round)
        self._known, self._round = seconds, round_
        # The first step of a round is often slow. A rank that had only that one would get fewer
        # and fewer steps.
        self._own_s, self._turns, self._next = self._own_s[-REMEMBERED:], None, None

    def advance(self, seconds: Mapping[int, float]) -> None:
        """Ends the round, and determines the steps of the next one.

        Args:
            seconds: of a local step in the round, by rank.
        """
        before = self._round
        assert before is not None, "a round ends after it began"
        first = before.last + 1
        last = first + steps_in(self._limit_s, [*seconds.values()]) - 1
        end = self._plan.last_step
        # A run that is continued beyond its last step has whole rounds again.
        last = min(last, end) if first <= end else last
        self.follow(Round(before.number + 1, first, last, last, True, None, last == end), seconds)

    def state_dict(self) -> dict[str, Tensor]:
        """Returns the round of the next step, and the seconds of all ranks."""
        if self._round is None:
            return {}
        numbers = self._round.number, self._round.first, self._round.last
        pairs = [value for pair in sorted(self._known.items()) for value in pair]
        return {PACE: torch.tensor([*numbers, *pairs], dtype=torch.float64)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restores the result of `state_dict`; a state of a run without pace has none.

        Raises:
            CheckpointError: the numbers cannot be those of a round.
        """
        if PACE not in state:
            return
        values = state[PACE].tolist()
        if len(values) % 2 == 0 or not all(0 <= value < 2**53 for value in values):
            raise CheckpointError(
                f"the checkpoint has {len(values)} numbers of a round and of the speeds of ranks, "
                "of which some are out of range: it is damaged"
            )
        number, first, last = map(int, values[:3])
        end = self._plan.last_step
        last = max(first, min(last, end) if first <= end else last)
        self._known = dict(zip(map(int, values[3::2]), values[4::2], strict=True))
        self._round = Round(number, first, last, last, True, None, last == end)
