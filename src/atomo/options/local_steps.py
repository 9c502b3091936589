"""Numbers of local steps in a round, by epoch: `8`, or `0: 1; 2: 30`.

A round of one step averages the gradients of the step, as training without local steps does. A
longer round averages the differences of weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, final

from atomo.core.bounds import ANY
from atomo.errors import ConfigError
from atomo.options.outer import is_sign
from atomo.options.rounds import LATE, UNSENT

__all__ = [
    "LocalOptions",
    "LocalPhase",
    "local_phases",
    "longest_round",
    "phases_text",
    "read_mix",
    "read_overlap",
]

MOST: Final = 10_000_000  # steps of a round


@final
@dataclass(frozen=True)
class LocalOptions:
    """The options of local steps, as given."""

    steps: str
    outer: str
    outer_mean: str
    fragments: int
    overlap: int | str
    mix: float | str
    transform: str = "none"
    seconds: float = 0.0

    @property
    def has_rounds(self) -> bool:
        """True if a round of the run has local steps."""
        return any(self.is_local(phase.every) for phase in local_phases(self.steps))

    def is_local(self, every: int) -> bool:
        """Returns True if rounds of so many steps average differences of weights, not gradients.

        A round of one step does so where its step cannot be taken with a mean of gradients.
        """
        is_plain = self.transform.lower() == "none" and self.mix != UNSENT
        return every > 1 or not is_plain or is_sign(self.outer)

    @property
    def streams(self) -> bool:
        """True if workers keep a part of their own weights at the end of a round."""
        return self.fragments > 1 or bool(self.overlap) or bool(self.mix)

    @property
    def is_late(self) -> bool:
        """True if the mean of a round is applied one round late."""
        phases = local_phases(self.steps)
        lengths = {phase.every for phase in phases if self.is_local(phase.every)}
        return self.overlap == LATE or (self.fragments == 1 and lengths == {self.overlap})


@final
@dataclass(frozen=True)
class LocalPhase:
    """The number of steps in a round, and the epoch from which it holds."""

    epoch: float
    every: int


def read_overlap(text: str) -> int | str:
    """Returns the steps of `--overlap`, or "round".

    >>> read_overlap("2"), read_overlap("Round")
    (2, 'round')

    Raises:
        ConfigError: it is neither.
    """
    if text.lower() == LATE:
        return LATE
    if not text.isascii() or not text.isdigit() or int(text) > MOST:
        raise ConfigError(f"--overlap must be a number of steps in 0..{MOST}, or round, got {text}")
    return int(text)


def read_mix(text: str) -> float | str:
    """Returns the share of `--mix`, or "unsent".

    >>> read_mix("0.50"), read_mix("unsent")
    (0.5, 'unsent')

    Raises:
        ConfigError: it is neither.
    """
    if text.lower() == UNSENT:
        return UNSENT
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise ConfigError(f"--mix must be a share in 0..1, or unsent, got {text}")
    return share


def local_phases(text: str) -> tuple[LocalPhase, ...]:
    """Returns the phases of `--local-steps`; the first begins at epoch 0.

    >>> local_phases("0: 1; 2.5: 30")
    (LocalPhase(epoch=0.0, every=1), LocalPhase(epoch=2.5, every=30))
    >>> local_phases("8")
    (LocalPhase(epoch=0.0, every=8),)

    Raises:
        ConfigError: the text cannot be read, or goes back in time.
    """
    if ":" not in text:
        return (LocalPhase(0.0, steps_in(text, text)),)
    phases = tuple(phase_in(entry, text) for entry in text.split(";") if entry.strip())
    if not phases or phases[0].epoch > 0:
        phases = (LocalPhase(0.0, 1), *phases)
    check_order(phases)
    return phases


def longest_round(text: str) -> int:
    """Returns the largest number of steps in a round; 1: no round has local steps.

    >>> longest_round("0: 1; 2: 30"), longest_round("1")
    (30, 1)
    """
    return max(phase.every for phase in local_phases(text))


def phases_text(phases: Sequence[LocalPhase]) -> str:
    """Returns the text that has these phases.

    >>> phases_text(local_phases("8")), phases_text(local_phases("0:1;2: 30"))
    ('8', '0: 1; 2: 30')
    """
    if len(phases) == 1:
        return str(phases[0].every)
    return "; ".join(f"{phase.epoch:g}: {phase.every}" for phase in phases)


def phase_in(entry: str, text: str) -> LocalPhase:
    """Returns one `EPOCH: STEPS`."""
    epoch, _, steps = entry.partition(":")
    try:
        begins = float(epoch)
    except ValueError:
        begins = -1.0
    if not 0 <= begins <= ANY.most:
        raise unreadable(text)
    return LocalPhase(begins, steps_in(steps, text))


def steps_in(word: str, text: str) -> int:
    """Returns a number of steps."""
    try:
        steps = int(word)
    except ValueError:
        raise unreadable(text) from None
    if not 1 <= steps <= MOST:
        raise ConfigError(f"--local-steps must be in 1..{MOST} steps a round, got {steps}")
    return steps


def unreadable(text: str) -> ConfigError:
    """Makes the error for a text that is neither a number nor a list of phases."""
    return ConfigError(
        f"--local-steps: cannot read {text!r}; write a number of steps, or 'EPOCH: STEPS; EPOCH: "
        "STEPS'"
    )


def check_order(phases: Sequence[LocalPhase]) -> None:
    """Raises ConfigError if an epoch is not above the epoch before it."""
    for before, after in pairwise(phases):
        if after.epoch <= before.epoch:
            raise ConfigError(
                f"--local-steps: epoch {after.epoch:g} comes after epoch {before.epoch:g}; name "
                "epochs in increasing order"
            )
