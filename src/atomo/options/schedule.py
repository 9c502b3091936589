"""A codec that changes while training runs, such as DGC's sparsity warm-up.

`0: dgc(ratio=0.25); 1: dgc(ratio=0.063); 2.5: dgc(ratio=0.001)` names an epoch, which may have a
fraction, and the codec from there on. The memories keep their residuals.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any, final

from atomo.codecs import Codec, make_codec
from atomo.codecs.sparse.dgc import warm_up
from atomo.core.bounds import ANY
from atomo.errors import ConfigError

__all__ = ["Phase", "parse_schedule", "phases", "schedule_text", "step_phases", "warm_up_schedule"]


@final
@dataclass(frozen=True)
class Phase:
    """A codec, and the epoch from which it serves."""

    epoch: float
    codec: Codec[Any]


def phases(code: str, schedule: str) -> tuple[Phase, ...]:
    """Returns the codecs of a run in order; the first begins at epoch 0.

    >>> [phase.epoch for phase in phases("fp16", "2: sgd")]
    [0.0, 2.0]

    Raises:
        ConfigError: the schedule cannot be read, or goes back in time.
    """
    planned = parse_schedule(schedule)
    if not planned or planned[0].epoch > 0:
        planned = (Phase(0.0, make_codec(code)), *planned)
    return planned


def schedule_text(planned: Sequence[Phase]) -> str:
    """Returns the schedule that has these phases.

    >>> schedule_text(phases("fp16", "2: sgd"))
    '0.0: fp16; 2.0: sgd'
    """
    return "; ".join(f"{phase.epoch}: {phase.codec}" for phase in planned)


def warm_up_schedule(codec: Codec[Any], epochs: int) -> str:
    """Returns DGC's exponential warm-up: the density shrinks by the same factor each epoch.

    >>> warm_up_schedule(make_codec("topk(ratio=0.001)"), 2)
    '0: topk(ratio=0.1); 1: topk; 2: topk(ratio=0.001)'

    Raises:
        ConfigError: the codec has no ratio.
    """
    if not any(field.name == "ratio" for field in fields(codec)):  # type: ignore[arg-type]
        raise ConfigError(
            f"--warmup-epochs: codec {codec.id} has no ratio to warm up; that of the learning rate "
            "is --lr-warmup-epochs"
        )
    ratios = warm_up(codec.ratio, epochs)  # type: ignore[attr-defined]
    rising = [replace(codec, ratio=float(f"{ratio:.6g}")) for ratio in ratios[:-1]]  # type: ignore[type-var]
    return "; ".join(f"{epoch}: {code}" for epoch, code in enumerate([*rising, codec]))


def step_phases(schedule: str) -> tuple[Phase, ...]:
    """Returns the phases of `STEP: CODEC; STEP: CODEC`, as hooks have them, which know no epochs.

    >>> [int(phase.epoch) for phase in step_phases("0: fp16; 100: sgd")]
    [0, 100]

    Raises:
        ConfigError: the schedule cannot be read, goes back in time, or has a fraction of a step.
    """
    try:
        planned = parse_schedule(schedule)
    except ConfigError as error:
        words = str(error).replace("--code-schedule", "code_schedule").replace("EPOCH", "STEP")
        raise ConfigError(words.replace("epoch", "step")) from None
    for phase in planned:
        if not phase.epoch.is_integer():
            raise ConfigError(f"code_schedule: {phase.epoch:g} is no whole number of steps")
    return planned


def parse_schedule(schedule: str) -> tuple[Phase, ...]:
    """Returns the phases of `EPOCH: CODEC; EPOCH: CODEC`."""
    planned = tuple(parse_phase(entry) for entry in schedule.split(";") if entry.strip())
    check_order(planned)
    return planned


def parse_phase(entry: str) -> Phase:
    """Returns one `EPOCH: CODEC`."""
    epoch, colon, spec = entry.partition(":")
    try:
        begins = float(epoch)
    except ValueError:
        begins = -1.0
    if not colon or not 0 <= begins <= ANY.most:
        raise ConfigError(f"--code-schedule: cannot read {entry.strip()!r}; write 'EPOCH: CODEC'")
    return Phase(begins, make_codec(spec))


def check_order(planned: Sequence[Phase]) -> None:
    """Raises ConfigError if an epoch is not above the epoch before it."""
    for before, after in pairwise(planned):
        if after.epoch <= before.epoch:
            raise ConfigError(
                f"--code-schedule: epoch {after.epoch:g} comes after epoch {before.epoch:g}; "
                "name epochs in increasing order"
            )
