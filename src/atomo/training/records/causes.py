"""Causes of divergence: combinations of settings that are unstable at their learning rate.

The table has three uses: a caution before the first step, a caution while the loss grows, and the
error message when the loss is no longer finite.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, final

from atomo.codecs import Law
from atomo.config.checks import ADAMS
from atomo.config.comm_rules import own_memory
from atomo.config.resolve_codec import delays_all_entries, draws_atoms
from atomo.config.settings import Settings
from atomo.memory import Momentum, MomentumCorrection, NoMemory, Residual, kind_of
from atomo.options.outer import parse_outer

__all__ = ["at_start", "likely"]

LARGE_FOR_SIGNS: Final = 0.002  # larger learning rates move weights by more than their size
FEW: Final = 0.002  # share of the entries; with fewer, Adam loses accuracy without a memory


@final
@dataclass(frozen=True)
class Cause:
    """A cause of divergence, its condition, and its remedy."""

    holds: Callable[[Settings], bool]
    text: str
    """The cause and the remedy, with fields of Settings in braces."""
    certain: bool
    """True if the settings alone show the cause, before the first step."""


def at_start(settings: Settings) -> Iterator[str]:
    """Returns the causes that resolved settings show before the first step, the worst first."""
    return (
        described(cause, settings)
        for cause in causes_of(settings)
        if cause.certain and cause.holds(settings)
    )


def likely(settings: Settings) -> str:
    """Returns the most likely cause of divergence for resolved settings, and its remedy."""
    return next(
        described(cause, settings) for cause in causes_of(settings) if cause.holds(settings)
    )


def causes_of(settings: Settings) -> Sequence[Cause]:
    """Returns the causes that may apply: what codecs do to a step is no cause in a local step."""
    return LOCAL_CAUSES if settings.has_local_steps else CAUSES


def described(cause: Cause, settings: Settings) -> str:
    """Returns the text of a cause with the values of this run."""
    return cause.text.format_map(vars(settings) | {"workers": settings.workers})


def averaged_twice(s: Settings) -> bool:
    """Applies to a momentum memory with Adam, which averages gradients, too. Codecs that vote are
    an exception: their paper votes on an average.
    """
    votes = any(codec.votes for codec in s.codecs)
    return kind_of(s.memory) is Momentum and s.optimizer in ADAMS and not votes


def blind_feedback(s: Settings) -> bool:
    """Applies to random entries with a memory: an entry waits n / k steps for its draw, and a
    single step then has the sum of all its gradients.
    """
    drawn = any(codec.shared_seed and not codec.amplifies_noise for codec in s.codecs)
    return kind_of(s.memory).feeds_back and drawn


def blind_feedback_with_momentum(s: Settings) -> bool:
    """Applies to momentum after such a memory: momentum repeats these large updates."""
    return blind_feedback(s) and s.momentum_of_sgd > 0


def blind_feedback_with_adam(s: Settings) -> bool:
    """Applies to Adam after such a memory: Adam divides by the size of the gradient, so that the
    sum of many gradients moves a weight by a single step.
    """
    return blind_feedback(s) and s.optimizer in ADAMS and not kind_of(s.memory).makes_update


def few_entries_with_adam(s: Settings) -> bool:
    """Applies if nearly all entries are dropped for good. With 1 % of the entries, Adam reaches the
    accuracy that it has with a memory.
    """
    few = any(
        getattr(codec, "ratio", 1.0) < FEW and not codec.amplifies_noise for codec in s.codecs
    )
    return s.memory == NoMemory.id and s.optimizer in ADAMS and few


def drawn_with_adam(s: Settings) -> bool:
    """Applies to drawn atoms with Adam: a small transformer ended 0.65 above dense gradients."""
    return s.memory == NoMemory.id and s.optimizer in ADAMS and draws_atoms(s.codecs)


def momentum_after_feedback(s: Settings) -> bool:
    """Applies to momentum after error feedback: it repeats updates that the residual has already
    delivered.
    """
    late = any(Law.CONTRACTION in codec.laws and not codec.near_lossless for codec in s.codecs)
    residual = kind_of(s.memory) is Residual and own_memory(s.comm_type) is None
    return residual and s.optimizer == "sgd" and s.momentum > 0 and late


def momentum_after_late_factors(s: Settings) -> bool:
    """Applies to ACP-SGD of rank 1: its factor is of the last step, and leaves most of a gradient
    in the residual, so that Nesterov momentum diverges as well.
    """
    narrow = any(getattr(codec, "rank", 0) == 1 for codec in s.codecs)
    return momentum_after_factors(s) and s.comm_type == "ACPSGD" and narrow


def momentum_after_factors(s: Settings) -> bool:
    """Applies to PowerSGD as published, which converges at most ranks."""
    residual = kind_of(s.memory) is Residual and own_memory(s.comm_type) is not None
    return residual and s.optimizer == "sgd" and s.momentum > 0


def heavy_ball_after_factors(s: Settings) -> bool:
    """Applies to PowerSGD and ACP-SGD without Nesterov's term: rank 1 and ACP-SGD diverge."""
    waits = delays_all_entries(s.codecs, s.memory)  # dense gradients do not
    return momentum_after_factors(s) and not s.uses_nesterov and waits


def momentum_of_what_was_sent(s: Settings) -> bool:
    """Applies to momentum without masking in the workers' memories: it repeats sent updates."""
    return kind_of(s.memory) is MomentumCorrection and "masking=False" in s.memory


def long_signs(s: Settings) -> bool:
    """Applies to signs: the learning rate alone is the size of a step."""
    return s.peak_lr > LARGE_FOR_SIGNS and any(codec.votes for codec in s.codecs)


def undamped_noise(s: Settings) -> bool:
    """Applies to unbiased codecs without damping: errors of few workers do not average out."""
    plain = s.memory == NoMemory.id and not (s.noise_damping and s.optimizer == "sgd")
    return plain and any(codec.amplifies_noise for codec in s.codecs)


def late_feedback(s: Settings) -> bool:
    """Applies to late gradients, which wait in the memory and arrive stale."""
    return s.num_aggregate < s.workers and kind_of(s.memory).feeds_back


def outer_momentum_after_feedback(s: Settings) -> bool:
    """Applies to outer momentum with a memory, which delivers parts of differences late."""
    return parse_outer(s.outer).momentum > 0 and kind_of(s.memory).feeds_back


CAUSES: Final = (
    Cause(
        averaged_twice,
        "--memory {memory} averages gradients, and Adam does so again, which overshoots; leave "
        "--memory out",
        certain=True,
    ),
    Cause(
        blind_feedback_with_adam,
        "{code} sends an entry when it is drawn, with its residual of many steps, which Adam "
        "shortens to one step; give --code topk, or --optimizer sgd --momentum 0",
        certain=True,
    ),
    Cause(
        blind_feedback_with_momentum,
        "{code} sends an entry when it is drawn, with its residual of many steps, and --momentum "
        "{momentum:g} repeats it; give --momentum 0",
        certain=True,
    ),
    Cause(
        few_entries_with_adam,
        "--memory none forgets all but the few entries that {code} sends, and Adam trains worse "
        "for it; leave --memory out",
        certain=True,
    ),
    Cause(
        drawn_with_adam,
        "{code} draws the atoms that it sends, and Adam does not shorten its steps for their "
        "noise, with which a transformer trains much worse; give --code 'svd(selection=top)', "
        "which keeps the other atoms for later",
        certain=True,
    ),
    Cause(
        momentum_after_feedback,
        "momentum at the master ({momentum:g}) repeats updates that --memory {memory} has delayed; "
        "give --memory dgc, which applies it before the codec, or --momentum 0",
        certain=True,
    ),
    Cause(
        momentum_after_late_factors,
        "--momentum {momentum:g} repeats updates that the factors of --comm-type {comm_type} have "
        "delayed; give --memory dgc, which applies it before them, or --momentum 0",
        certain=True,
    ),
    Cause(
        heavy_ball_after_factors,
        "heavy-ball momentum repeats updates that the factors of --comm-type {comm_type} have "
        "delayed: it ends lower, or diverges; leave --nesterov out",
        certain=True,
    ),
    Cause(
        momentum_after_factors,
        "--momentum {momentum:g} repeats updates that the factors of --comm-type {comm_type} have "
        "delayed; give a lower --lr, a higher --svd-rank, --memory dgc, or --momentum 0",
        certain=False,
    ),
    Cause(
        long_signs,
        "with {code} every weight moves by --lr at every step, and {lr:g} is long; try 0.0005",
        certain=True,
    ),
    Cause(
        momentum_of_what_was_sent,
        "--memory {memory} keeps the momentum of sent entries, which overshoots; give dgc",
        certain=False,
    ),
    Cause(
        undamped_noise,
        "the errors of {code} hardly average out over so few workers ({workers}); leave "
        "--noise-damping on with --optimizer sgd, send more, or lower --lr",
        certain=False,
    ),
    Cause(
        late_feedback,
        "{num_aggregate} of {workers} workers close a step, and late gradients wait in --memory "
        "{memory} until they are old; raise --num-aggregate, or lower --lr",
        certain=False,
    ),
    Cause(lambda s: True, "--lr {lr:g} is too high here, or the data are not sound", certain=False),
)
LOCAL_CAUSES: Final = (
    Cause(
        outer_momentum_after_feedback,
        "the momentum of --outer '{outer}' repeats differences that --memory {memory} has delayed; "
        "give --outer auto",
        certain=True,
    ),
    *CAUSES[-2:],
)
