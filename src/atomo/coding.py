"""Which codecs and which memory a run has, from all the settings that say something of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Final

from atomo.codecs import Codec, make_codec
from atomo.codecs.by_name import ByName
from atomo.comm_types import COMM_TYPES
from atomo.errors import ConfigError
from atomo.memory import Forget, default_memory
from atomo.names import resolve
from atomo.roles import fitted_codec, own_memory
from atomo.schedule import Phase, phases, spelled, warm_up_schedule
from atomo.setting_checks import wants_gpu

__all__ = [
    "AUTO",
    "check_auto",
    "fitted_by_name",
    "fitted_phases",
    "fitted_schedule",
    "needed_memory",
    "with_flags",
]

AUTO: Final = "auto"
CHOOSING: Final = ("Bcast", "Allgather", "Allreduce")  # communicators that take several codecs


def check_auto(
    comm_type: str, code_schedule: str, code_for: str, warmup_epochs: int, enable_gpu: str | bool
) -> None:
    """Raises ConfigError for what does not go with `--code auto`, such as what says something of
    the codecs beside it.
    """
    if code_schedule or code_for or warmup_epochs:
        raise ConfigError(
            "--code auto chooses the codec of every layer: leave out --code-schedule, --code-for "
            "and --warmup-epochs, or give a --code"
        )
    if resolve("comm-type", comm_type, COMM_TYPES) not in CHOOSING:
        raise ConfigError(
            f"--code auto chooses for --comm-type {', '.join(CHOOSING)}; {comm_type} has a codec "
            "of its own: give --svd-rank"
        )
    if wants_gpu(enable_gpu):
        raise ConfigError(
            f"--code auto times codecs on the CPU, which says nothing of GPUs (--enable-gpu "
            f"{enable_gpu}): give a --code, such as bf16 where links are fast and topk or "
            "'svd(rank=3)' where they are slow; `atomo throughput` with the same options compares "
            "one with dense gradients"
        )


def with_flags(code: str, said: Mapping[str, int | float | None]) -> Codec[Any]:
    """A codec with what the published flags say of it.

    The quantising flags say nothing about codecs that do not quantise.

    Args:
        code: its specification.
        said: by the name of a codec's setting; None: nothing.

    Raises:
        ConfigError: both say something of one setting, and not the same.
    """
    codec = make_codec(code)
    known = {f.name for f in fields(codec)}  # type: ignore[arg-type]
    given = {name: value for name, value in said.items() if value is not None and name in known}
    for name, value in given.items():
        if f"{name}=" in code.replace(" ", "") and getattr(codec, name) != value:
            raise ConfigError(f"--code {code!r} contradicts the flag that says {name}={value}")
    changed: Codec[Any] = replace(codec, **given)  # type: ignore[type-var]
    return changed


def fitted_phases(codec: Codec[Any], code_schedule: str, comm_type: str) -> tuple[Phase, ...]:
    """What `--code-schedule` makes of the codec, with codecs as a communicator uses them."""
    planned = phases(str(codec), code_schedule)
    return tuple(replace(one, codec=fitted_codec(one.codec, comm_type)) for one in planned)


def fitted_by_name(by_name: ByName, comm_type: str) -> ByName:
    """Codecs of single parameters as a communicator uses them."""
    return by_name.mapped(lambda codec: fitted_codec(codec, comm_type))


def fitted_schedule(
    codec: Codec[Any], code_schedule: str, warmup_epochs: int, comm_type: str
) -> str:
    """The schedule that was given, or that of the warm-up.

    Raises:
        ConfigError: there are both.
    """
    if not warmup_epochs:
        fitted = fitted_phases(codec, code_schedule, comm_type)
        return code_schedule if fitted == phases(str(codec), code_schedule) else spelled(fitted)
    if code_schedule:
        raise ConfigError("--warmup-epochs makes a --code-schedule of its own; give one of them")
    return warm_up_schedule(codec, warmup_epochs)


def needed_memory(codecs: Sequence[Codec[Any]], comm_type: str, momentum: float) -> str:
    """The memory of the last codec that needs one, of all that a run has.

    Args:
        codecs: those of its schedule, in order, and of single parameters.
        comm_type: the communicator, which may take a memory of its own.
        momentum: that of the optimiser; 0 where it has none.
    """
    own = own_memory(comm_type)
    if own is not None:
        return own
    needed = [default_memory(codec, momentum) for codec in codecs]
    return next((memory for memory in reversed(needed) if memory != Forget.id), Forget.id)
