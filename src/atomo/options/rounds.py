"""The times at which fragments of a model are exchanged.

Douillard et al., "Streaming DiLoCo with overlapping communication", 2025.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final, final

from atomo.core.names import described
from atomo.errors import ConfigError

__all__ = ["DCT", "LATE", "TRANSFORMS", "UNSENT", "Every", "RoundPhase", "Rounds"]

Every = int | str | Mapping[int, int]
"""The number of steps in a round, or by the step from which it holds: "0: 1; 1000: 30"."""
LATE: Final = "round"
UNSENT: Final = "unsent"
DCT: Final = "dct"
TRANSFORMS: Final = ("none", DCT)
"""Rotations of differences before they are coded."""


@final
@dataclass(frozen=True)
class RoundPhase:
    """A number of steps in a round, and the number of steps after which it holds."""

    begin: int
    every: int


@final
@dataclass(frozen=True)
class Rounds:
    """The steps after which exchanges begin and end. A round exchanges each fragment once.

    Attributes:
        every: the number of optimizer steps in a round, or a schedule of them by steps, such as
            {0: 1, 1000: 30}.
        fragments: the number of fragments, which divides `every`.
        overlap: the number of steps between the beginning and the end of an exchange; "round": the
            exchange of a round continues during the whole next round.
        mix: the weight of a replica's own weights when it continues from the anchor; "unsent": a
            replica keeps its own weights where nothing was sent.
    """

    every: Every = 30
    fragments: int = 1
    overlap: int | str = 0
    mix: float | str = 0.0

    def __post_init__(self) -> None:
        check_count("fragments", self.fragments, 1)
        self._check_lengths()
        self._check_overlap()
        if self.mix == UNSENT:
            return
        if type(self.mix) not in (int, float) or not 0 <= float(self.mix) <= 1:
            raise ConfigError(f"mix must be a number in [0, 1], got {described(self.mix)}")

    def _check_lengths(self) -> None:
        """Raises ConfigError if fragments do not divide rounds, or rounds do not divide a phase."""
        for phase in self.phases:
            if phase.every % self.fragments:
                raise ConfigError(
                    f"every={phase.every} must be a multiple of fragments={self.fragments}: one "
                    "fragment is exchanged every every/fragments steps"
                )
        for phase, after in pairwise(self.phases):
            if (after.begin - phase.begin) % phase.every:
                raise ConfigError(
                    f"every: {after.begin - phase.begin} steps from step {phase.begin} to step "
                    f"{after.begin} are no whole number of rounds of {phase.every}"
                )

    def _check_overlap(self) -> None:
        """Raises ConfigError for an overlap that two exchanges in flight would need."""
        if self.late:
            if self.fragments > 1 or self.mix:
                raise ConfigError(
                    "overlap of a whole round needs fragments=1 and mix=0: each replica keeps the "
                    f"steps of its last round, got fragments={self.fragments}, mix={self.mix}"
                )
            return
        check_count("overlap", self.overlap, 0)
        shortest = min(self.phases, key=lambda phase: phase.every)
        if self._steps_of_overlap >= shortest.every // self.fragments:
            raise ConfigError(
                f"overlap={self.overlap} must be below every/fragments = "
                f"{shortest.every // self.fragments}: one fragment is in flight at a time"
            )

    @cached_property
    def phases(self) -> tuple[RoundPhase, ...]:
        """The numbers of steps in a round, in the order in which they hold."""
        return parse_every(self.every)

    @property
    def late(self) -> bool:
        """True if the mean of a round is applied one round late."""
        whole = len(self.phases) == 1 and self.fragments == 1
        return self.overlap == LATE or (whole and self.overlap == self.phases[0].every)

    @property
    def _steps_of_overlap(self) -> int:
        return self.overlap if type(self.overlap) is int and not self.late else 0

    @property
    def last_every(self) -> int:
        """The number of steps in a round at the end of the schedule."""
        return self.phases[-1].every

    def begins(self, steps: int) -> int | None:
        """Returns the fragment whose exchange begins after so many steps; None: no exchange does.

        >>> [Rounds(6, 2, overlap=1).begins(steps) for steps in range(1, 7)]
        [None, 0, None, None, 1, None]
        """
        return self.ends(steps + self._steps_of_overlap)

    def ends(self, steps: int) -> int | None:
        """Returns the fragment whose exchange ends after so many steps; None: no exchange does.

        >>> [Rounds(6, 2, overlap=1).ends(steps) for steps in range(1, 7)]
        [None, None, 0, None, None, 1]
        >>> [steps for steps in range(1, 13) if Rounds({0: 1, 3: 4}).ends(steps) is not None]
        [1, 2, 3, 7, 11]
        """
        phase = self._phase(steps - 1)
        count, rest = divmod(steps - phase.begin, phase.every // self.fragments)
        return None if rest or not count else (count - 1) % self.fragments

    def since(self, steps: int) -> int:
        """Returns how many of so many steps follow the end of the last exchange.

        >>> [Rounds({0: 1, 3: 4}).since(steps) for steps in range(8)]
        [0, 0, 0, 0, 1, 2, 3, 0]
        """
        phase = self._phase(steps)
        return (steps - phase.begin) % (phase.every // self.fragments)

    def until(self, steps: int) -> int:
        """Returns how many steps follow so many steps until an exchange ends."""
        return self._phase(steps).every // self.fragments - self.since(steps)

    def _phase(self, steps: int) -> RoundPhase:
        """Returns the phase of the step that follows so many steps."""
        return [phase for phase in self.phases if phase.begin <= max(0, steps)][-1]

    def __str__(self) -> str:
        every = "; ".join(f"{phase.begin}: {phase.every}" for phase in self.phases)
        every = str(self.last_every) if len(self.phases) == 1 else every
        overlap = LATE if self.late else self.overlap
        return f"every={every}, fragments={self.fragments}, overlap={overlap}"


def parse_every(every: object) -> tuple[RoundPhase, ...]:
    """Returns the phases of a number of steps in a round, or of a schedule of such numbers.

    >>> parse_every("0: 1; 1000: 30")
    (RoundPhase(begin=0, every=1), RoundPhase(begin=1000, every=30))

    Raises:
        ConfigError: a number is out of range, or the schedule cannot be read.
    """
    if isinstance(every, str):
        every = int(every) if every.isdigit() else schedule(every)
    if not isinstance(every, Mapping):
        check_count("every", every, 1)
        return (RoundPhase(0, every),)  # type: ignore[arg-type]  # checked
    for begin, length in every.items():
        check_count("every: a step", begin, 0)
        check_count("every", length, 1)
    begins = [*every]
    if begins != sorted(begins) or begins[:1] != [0]:
        raise ConfigError(f"every: steps must increase from 0, got {begins}")
    return tuple(RoundPhase(begin, length) for begin, length in every.items())


def schedule(text: str) -> dict[int, int]:
    """Returns the schedule of `STEP: EVERY; STEP: EVERY`."""
    try:
        pairs = [entry.split(":") for entry in text.split(";") if entry.strip()]
        return {int(begin): int(length) for begin, length in pairs}
    except ValueError:
        raise ConfigError(
            f"every: cannot read {text!r}; write 'STEP: EVERY; STEP: EVERY'"
        ) from None


def check_count(name: str, value: object, least: int) -> None:
    """Raises ConfigError for anything but a whole number from `least`."""
    if type(value) is not int or value < least:
        raise ConfigError(f"{name} must be a whole number from {least}, got {value!r}")
