"""Rules of local steps, and the memories that go with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from atomo.config.comm_rules import has_master
from atomo.config.comm_types import COMM_TYPES
from atomo.config.resolve_codec import AUTO_CODEC
from atomo.core.names import resolve
from atomo.errors import ConfigError
from atomo.memory import kind_of
from atomo.options.grouping import Grouping
from atomo.options.local_steps import (
    LocalOptions,
    LocalPhase,
    local_phases,
    longest_round,
    phases_text,
)
from atomo.options.outer import AUTO, automatic_outer, parse_outer
from atomo.options.rounds import LATE, TRANSFORMS, UNSENT, Rounds

__all__ = ["SENDERS", "check_local_steps", "check_round_messages", "resolved_rounds"]

SENDERS: Final = "senders"
MEANS: Final = ("workers", SENDERS)
GATHERS: Final = "Allgather"
WHOLE_MODEL: Final = ("count", "cuts")  # groupings of all parameters of a model


def check_local_steps(local: LocalOptions, comm_type: str) -> None:
    """Raises ConfigError for options of local steps that are out of range or contradict others."""
    resolve("outer-mean", local.outer_mean, MEANS)
    resolve("transform", local.transform, TRANSFORMS)
    if local.outer.lower() != AUTO:
        parse_outer(local.outer)
    phases = local_phases(local.steps)
    for before, phase in zip((phases[0], *phases), phases, strict=False):
        if local.is_local(phase.every):
            check_rounds(local, phase.every)
        elif before.every > 1:
            raise ConfigError(
                f"--local-steps {local.steps}: rounds of 1 step come first, since the optimizers "
                "of workers differ after rounds of several steps; give at least 2"
            )
    if local.has_rounds and local.outer_mean.lower() == SENDERS:
        check_senders(local, comm_type)
    if local.has_rounds and local.seconds:
        check_seconds(local, phases)
    if local.has_rounds and has_master(comm_type):
        check_master(local, comm_type)


def check_master(local: LocalOptions, comm_type: str) -> None:
    """Raises ConfigError for rounds that need a run without a master."""
    other = "give a --comm-type without a master, such as Allgather"
    if local.is_late:
        raise ConfigError(
            f"--overlap {local.overlap}: with --comm-type {comm_type} a checkpoint has all workers "
            "at one step, and one round late they are a round ahead of the anchor; give fewer "
            f"steps than a round, or {other}"
        )
    if local.mix == UNSENT:
        raise ConfigError(
            f"--mix {UNSENT}: with --comm-type {comm_type} a worker gets the anchor, and does not "
            f"know which of its entries were sent; give a share in 0..1, or {other}"
        )


def check_senders(local: LocalOptions, comm_type: str) -> None:
    """Raises ConfigError for a run that has no mean over the senders of an entry."""
    from_first = local.is_local(local_phases(local.steps)[0].every)
    if resolve("comm-type", comm_type, COMM_TYPES) != GATHERS or not from_first:
        raise ConfigError(
            f"--outer-mean {SENDERS} needs --comm-type {GATHERS}, in which every process knows who "
            "sent an entry, and rounds of several steps from the first step on; leave it out"
        )


def check_seconds(local: LocalOptions, phases: Sequence[LocalPhase]) -> None:
    """Raises ConfigError for options that contradict rounds of a given time."""
    given = f"--local-seconds {local.seconds:g}"
    if longest_round(local.steps) == 1:
        raise ConfigError(
            f"{given}: rounds of 1 step have no time of their own; give --local-steps above 1"
        )
    if sum(phase.every > 1 for phase in phases) > 1:
        raise ConfigError(
            f"{given}: the time determines the steps of all rounds but the first, and "
            f"--local-steps {local.steps} has several numbers of steps; give one"
        )
    if local.outer_mean.lower() == SENDERS:
        raise ConfigError(
            f"{given} weighs processes by their samples, and --outer-mean {SENDERS} counts the "
            "senders of an entry; leave one of them out"
        )
    if local.fragments > 1 or local.overlap or local.mix:
        raise ConfigError(
            f"{given}: the steps of a round follow from its reports, so that rounds have no "
            f"--fragments {local.fragments}, --overlap {local.overlap}, --mix {local.mix}; leave "
            "them out"
        )


def check_rounds(local: LocalOptions, every: int) -> None:
    """Raises ConfigError for fragments, an overlap or a mix that rounds of this length lack."""
    try:
        rounds = Rounds(every, local.fragments, local.overlap, local.mix)
    except ConfigError as error:
        words = str(error).replace("every=", "--local-steps ").replace("every/", "--local-steps/")
        for name in ("fragments", "overlap", "mix"):
            words = words.replace(f"{name}=", f"--{name} ")
        raise ConfigError(words) from None
    if rounds.late and not local.is_late:
        raise ConfigError(
            f"--overlap {local.overlap} is a whole round of --local-steps {every}, but not of all "
            "rounds: give a smaller number of steps, or --overlap round"
        )


def check_round_messages(
    local: LocalOptions, code: str, fusion: str, grouping: Grouping, ema_decay: float
) -> None:
    """Raises ConfigError for codecs, messages and averages that rounds of local steps lack."""
    given = f"--local-steps {local.steps}"
    if not local.has_rounds:
        return
    if code.lower() == AUTO_CODEC:
        raise ConfigError(
            f"{given}: --code auto measures gradients, and rounds exchange differences of weights, "
            "of which codecs lose other shares; `atomo explain --local-steps` compares codecs for "
            "rounds: give a --code, such as 'topk(ratio=0.01)'"
        )
    if grouping.searched:
        raise ConfigError(
            f"{given}: --fusion {fusion} overlaps messages with a backward pass, and rounds have "
            "none, so that messages need no other sizes; leave it out"
        )
    if local.fragments > 1 and fusion.partition(":")[0].lower() in WHOLE_MODEL:
        raise ConfigError(
            f"--fragments {local.fragments}: --fusion {fusion} groups the whole model; give "
            "bytes:MB, layer or one, which group each fragment"
        )
    if ema_decay and local.mix == UNSENT:
        raise ConfigError(
            f"--mix {UNSENT}: --ema-decay {ema_decay:g} averages anchors, most entries of which "
            "are those of earlier rounds; leave it out"
        )


def resolved_rounds(local: LocalOptions, workers: int, memory: str) -> dict[str, Any]:
    """Returns the settings of local steps in canonical form.

    Args:
        local: the options.
        workers: the number of workers.
        memory: the memory of the run.
    """
    every, outer = longest_round(local.steps), local.outer.lower()
    if local.has_rounds:
        feeds_back = kind_of(memory).feeds_back
        chosen = (
            automatic_outer(every, workers, feeds_back=feeds_back)
            if outer == AUTO
            else parse_outer(local.outer)
        )
        outer = str(chosen)
    return {
        "local_steps": phases_text(local_phases(local.steps)),
        "overlap": LATE if local.is_late else str(local.overlap),
        "mix": local.mix if local.mix == UNSENT else f"{local.mix:g}",
        "transform": resolve("transform", local.transform, TRANSFORMS),
        "outer": outer,
        "outer_mean": resolve("outer-mean", local.outer_mean, MEANS),
    }
