"""Causes of divergence: combinations of settings that cannot bear their learning rate.

The same table serves three times: what is known before the first step is told then, and what a run
that diverges has in common with it is named while it does, and when its loss is no number any more.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, final

from atomo.codecs import Law
from atomo.config.comm_rules import own_memory
from atomo.config.settings import Settings
from atomo.memory import Momentum, MomentumCorrection, NoMemory, Residual, kind_of

__all__ = ["at_start", "likely"]

LARGE_FOR_SIGNS: Final = 0.002  # learning rates above it move weights further than they are large
FEW: Final = 0.002  # of the entries; below it Adam was measured to lose accuracy without a memory


@final
@dataclass(frozen=True)
class Cause:
    """One reason, where it holds, and what to do about it."""

    holds: Callable[[Settings], bool]
    text: str
    """With fields of Settings in braces."""
    known: bool
    """True if the settings alone show the cause, before the first step."""


def at_start(settings: Settings) -> Iterator[str]:
    """Returns the causes that resolved settings show before the first step, the worst first."""
    return (told(cause, settings) for cause in CAUSES if cause.known and cause.holds(settings))


def likely(settings: Settings) -> str:
    """Returns the likeliest reason for a run with these resolved settings to diverge, and a way
    out.
    """
    return next(told(cause, settings) for cause in CAUSES if cause.holds(settings))


def told(cause: Cause, settings: Settings) -> str:
    """Returns a cause with the values of this run."""
    return cause.text.format_map(vars(settings) | {"workers": settings.workers})


def averaged_twice(s: Settings) -> bool:
    """Applies to codecs that vote, with Adam: it averages gradients itself, and votes alone are of
    an average in their paper.
    """
    votes = any(one.votes for one in s.codecs)
    return kind_of(s.memory) is Momentum and s.optimizer == "adam" and not votes


def blind_feedback(s: Settings) -> bool:
    """Applies to random entries with a memory: an entry waits n / k steps for its draw, and all
    that waited comes at once.
    """
    drawn = any(one.shared_seed and not one.amplifies_noise for one in s.codecs)
    return kind_of(s.memory).feeds_back and drawn


def blind_feedback_with_momentum(s: Settings) -> bool:
    """Applies to momentum after such a memory: it repeats what comes at once."""
    return blind_feedback(s) and s.momentum_of_sgd > 0


def blind_feedback_with_adam(s: Settings) -> bool:
    """Applies to Adam after such a memory: it divides by its own length, so that all that waited
    moves a weight by one step.
    """
    return blind_feedback(s) and s.optimizer == "adam" and not kind_of(s.memory).makes_update


def few_entries_with_adam(s: Settings) -> bool:
    """True if nearly every entry is dropped for good. At 1 % Adam ends as with a memory."""
    few = any(getattr(one, "ratio", 1.0) < FEW and not one.amplifies_noise for one in s.codecs)
    return s.memory == NoMemory.id and s.optimizer == "adam" and few


def momentum_after_feedback(s: Settings) -> bool:
    """Applies to momentum after error feedback: it repeats updates that the residual has already
    delivered.
    """
    late = any(Law.CONTRACTION in one.laws and not one.near_lossless for one in s.codecs)
    given = kind_of(s.memory) is Residual and own_memory(s.comm_type) is None
    return given and s.optimizer == "sgd" and s.momentum > 0 and late


def momentum_after_late_factors(s: Settings) -> bool:
    """Applies to ACP-SGD: its fixed factor is a step old, and one atom leaves most of a gradient
    for later.
    """
    late = s.comm_type == "ACPSGD" or any(getattr(one, "rank", 0) == 1 for one in s.codecs)
    return momentum_after_factors(s) and late


def momentum_after_factors(s: Settings) -> bool:
    """Applies to PowerSGD as published, which converges at most ranks."""
    given = kind_of(s.memory) is Residual and own_memory(s.comm_type) is not None
    return given and s.optimizer == "sgd" and s.momentum > 0


def momentum_of_what_was_sent(s: Settings) -> bool:
    """Applies to momentum in the workers' memories, as above."""
    return kind_of(s.memory) is MomentumCorrection and "masking=False" in s.memory


def long_signs(s: Settings) -> bool:
    """Applies to signs: a step has no magnitude but the learning rate."""
    return s.peak_lr > LARGE_FOR_SIGNS and any(one.votes for one in s.codecs)


def undamped_noise(s: Settings) -> bool:
    """Errors of few workers do not average out within a step."""
    plain = s.memory == NoMemory.id and not (s.noise_damping and s.optimizer == "sgd")
    return plain and any(one.amplifies_noise for one in s.codecs)


def late_feedback(s: Settings) -> bool:
    """Applies to late gradients, which wait in the memory and arrive stale."""
    return s.num_aggregate < s.workers and kind_of(s.memory).feeds_back


CAUSES: Final = (
    Cause(
        averaged_twice,
        "--memory {memory} averages gradients, and Adam does so again, which overshoots; leave "
        "--memory out",
        known=True,
    ),
    Cause(
        blind_feedback_with_adam,
        "{code} sends an entry when it is drawn, with all that waited there, which Adam shortens "
        "to one step; give --code topk, or --optimizer sgd --momentum 0",
        known=True,
    ),
    Cause(
        blind_feedback_with_momentum,
        "{code} sends an entry when it is drawn, with all that waited there, and --momentum "
        "{momentum:g} goes on pushing it; give --momentum 0",
        known=True,
    ),
    Cause(
        few_entries_with_adam,
        "--memory none forgets all but the few entries that {code} sends, and Adam trains worse "
        "for it; leave --memory out",
        known=True,
    ),
    Cause(
        momentum_after_feedback,
        "momentum at the master ({momentum:g}) goes on pushing what --memory {memory} has delayed; "
        "give --memory dgc, which applies it before the codec, or --momentum 0",
        known=True,
    ),
    Cause(
        momentum_after_late_factors,
        "--momentum {momentum:g} goes on pushing what the factors of --comm-type {comm_type} have "
        "delayed; give --memory dgc, which applies it before them, or --momentum 0",
        known=True,
    ),
    Cause(
        momentum_after_factors,
        "--momentum {momentum:g} goes on pushing what the factors of --comm-type {comm_type} have "
        "delayed; give --memory dgc, a lower --lr, a higher --svd-rank, or --momentum 0",
        known=False,
    ),
    Cause(
        long_signs,
        "with {code} every weight moves by --lr at every step, and {lr:g} is long; try 0.0005",
        known=True,
    ),
    Cause(
        momentum_of_what_was_sent,
        "--memory {memory} keeps the momentum of what was sent, which overshoots; give dgc",
        known=False,
    ),
    Cause(
        undamped_noise,
        "the errors of {code} hardly average out over so few workers ({workers}); leave "
        "--noise-damping on with --optimizer sgd, send more, or lower --lr",
        known=False,
    ),
    Cause(
        late_feedback,
        "{num_aggregate} of {workers} workers close a step, and what is late waits in --memory "
        "{memory} until it is old; raise --num-aggregate, or lower --lr",
        known=False,
    ),
    Cause(lambda s: True, "--lr {lr:g} is too high here, or the data are not sound", known=False),
)
