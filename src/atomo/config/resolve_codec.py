"""The codecs and the memory of a run, resolved from all settings that concern them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Any, Final

from atomo.codecs import Codec, make_codec
from atomo.codecs.by_name import ByName
from atomo.config.checks import wants_gpu
from atomo.config.comm_rules import fitted_codec, own_memory
from atomo.config.comm_types import COMM_TYPES, PARAMETER_SERVER
from atomo.core.names import resolve
from atomo.errors import ConfigError
from atomo.memory import NoMemory, check_fits, default_memory
from atomo.options.rates import RATES, VOTES_RATE
from atomo.options.schedule import Phase, parse_schedule, phases, schedule_text, warm_up_schedule

__all__ = [
    "AUTO_CODEC",
    "FLAGS",
    "check_auto",
    "check_code",
    "codecs_text",
    "default_rate",
    "final_codec",
    "fitted_by_name",
    "fitted_phases",
    "fitted_schedule",
    "override_recipe",
    "required_memory",
    "starts_at_first_step",
]

AUTO_CODEC: Final = "auto"
# Options that the published scripts have for a setting of the codec, and that setting.
FLAGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "svd_rank": "rank",
        "quantization_level": "bits",
        "bucket_size": "bucket_size",
        "compress_ratio": "ratio",
    }
)
CHOOSING: Final = (
    PARAMETER_SERVER,
    "Allgather",
    "Allreduce",
)  # communicators that take several codecs


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


def override_recipe(recipe: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of a recipe with those that are given in their places.

    A recipe's schedule and memory belong to its codec: another codec, another ratio or a warm-up
    that is given drops the schedule, and another codec the memory as well.
    """
    settings = dict(recipe)
    own = make_codec(settings["code"])
    changed = changes(own, given)
    if changed:
        settings["code"] = str(replace(own, **changed))  # type: ignore[type-var]
    code = given.get("code", "")
    if changed or given.get("warmup_epochs") or (code and not is_codec(code, own)):
        settings.pop("code_schedule", None)
    if code and not is_codec(code, own, by_name=True):
        settings.pop("memory", None)
    return {**settings, **given}


def changes(codec: Codec[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what the published flags among the given settings change of a recipe's codec."""
    known = {} if given.get("code") else {f.name for f in fields(codec)}  # type: ignore[arg-type]
    said = {setting: given.get(name) for name, setting in FLAGS.items() if setting in known}
    return {
        setting: value
        for setting, value in said.items()
        if value is not None and value != getattr(codec, setting)
    }


def is_codec(code: str, codec: Codec[Any], *, by_name: bool = False) -> bool:
    """True if a specification means this codec; by name: its settings may be others."""
    if code.lower() == AUTO_CODEC:
        return False
    other = make_codec(code)
    return other.id == codec.id if by_name else other == codec


def starts_at_first_step(planned: Sequence[Phase]) -> bool:
    """True if a schedule has a codec for the first step, so that `--code` serves in none."""
    return bool(planned) and planned[0].epoch == 0


def check_code(code: str, code_schedule: str) -> None:
    """Raises ConfigError for a codec that is given beside a schedule in which it never serves."""
    planned = parse_schedule(code_schedule)
    if code.lower() == AUTO_CODEC or not starts_at_first_step(planned):
        return
    if make_codec(code) not in [phase.codec for phase in planned]:
        raise ConfigError(
            f"--code {code} serves in no step: --code-schedule {code_schedule!r} begins at epoch "
            "0; leave out --code, or give --code-schedule '' or one that begins later"
        )


def codecs_text(code: str, code_schedule: str, code_for: str) -> str:
    """Returns all codecs of a run in words, as its first line has them.

    >>> codecs_text("svd", "0: fp16; 2.5: svd", "bf16: conv1.weight")
    'by epoch 0: fp16; 2.5: svd; by name bf16: conv1.weight'
    """
    planned = phases(code, code_schedule)
    if len(planned) == 1:
        served = str(planned[0].codec)
    else:
        served = "by epoch " + "; ".join(f"{phase.epoch:g}: {phase.codec}" for phase in planned)
    return f"{served}; by name {code_for}" if code_for else served


def final_codec(
    code: str, said: Mapping[str, int | float | None], code_schedule: str
) -> Codec[Any]:
    """Returns the codec of the last step: that of `code` and the flags, or the schedule's last one
    where its first serves at once.
    """
    planned = parse_schedule(code_schedule)
    return planned[-1].codec if starts_at_first_step(planned) else with_flags(code, said)


def with_flags(code: str, said: Mapping[str, int | float | None]) -> Codec[Any]:
    """Returns a codec with what the published flags say of it.

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
    """Returns the phases of `--code-schedule`, with codecs as a communicator uses them."""
    planned = phases(str(codec), code_schedule)
    return tuple(replace(one, codec=fitted_codec(one.codec, comm_type)) for one in planned)


def fitted_by_name(by_name: ByName, comm_type: str) -> ByName:
    """Codecs of single parameters as a communicator uses them."""
    return by_name.mapped(lambda codec: fitted_codec(codec, comm_type))


def fitted_schedule(
    codec: Codec[Any], code_schedule: str, warmup_epochs: int, comm_type: str
) -> str:
    """Returns the schedule that was given, or that of the warm-up.

    Raises:
        ConfigError: there are both.
    """
    if not warmup_epochs:
        fitted = fitted_phases(codec, code_schedule, comm_type)
        return (
            code_schedule if fitted == phases(str(codec), code_schedule) else schedule_text(fitted)
        )
    if code_schedule:
        raise ConfigError("--warmup-epochs makes a --code-schedule of its own; give one of them")
    return warm_up_schedule(codec, warmup_epochs)


def default_rate(optimizer: str, codecs: Sequence[Codec[Any]]) -> float:
    """Returns the learning rate of a run that names none.

    Raises:
        ConfigError: there is no such optimiser.
    """
    name = resolve("optimizer", optimizer, RATES)
    return VOTES_RATE if any(one.votes for one in codecs) else RATES[name]


def required_memory(
    codecs: Sequence[Codec[Any]], comm_type: str, momentum: float, optimizer: str = "sgd"
) -> str:
    """Returns the memory of the last codec that needs one, among those that all codecs bear.

    Codecs that lose next to nothing come after the others, and go without where another must.

    Args:
        codecs: those of its schedule, in order, and of single parameters.
        comm_type: the communicator, which may take a memory of its own.
        momentum: that of the optimiser; 0 where it has none.
        optimizer: as of `default_memory`.

    Raises:
        ConfigError: there is no such memory.
    """
    own = own_memory(comm_type, momentum)
    if own is not None:
        return own
    needed = {codec: default_memory(codec, momentum, optimizer) for codec in reversed(codecs)}
    wanted = [(memory, codec) for codec, memory in needed.items() if memory != NoMemory.id]
    wanted.sort(key=lambda pair: pair[1].near_lossless)  # what loses much comes first
    borne = next((memory for memory, _ in wanted if all_accept(codecs, memory)), NoMemory.id)
    if borne == NoMemory.id and (starved := [one for _, one in wanted if not one.near_lossless]):
        raise memory_refusal(codecs, needed[starved[0]], starved[0])
    return borne


def all_accept(codecs: Sequence[Codec[Any]], memory: str) -> bool:
    """True if no codec is refused with this memory."""
    try:
        for codec in codecs:
            check_fits(codec, memory)
    except ConfigError:
        return False
    return True


def memory_refusal(codecs: Sequence[Codec[Any]], memory: str, needs_it: Codec[Any]) -> ConfigError:
    """Returns the error of a codec that does not bear the memory that another one needs."""
    try:
        for codec in codecs:
            check_fits(codec, memory)
    except ConfigError as error:
        return ConfigError(f"{error}; --memory auto took {memory}, which {needs_it} needs")
    raise AssertionError(f"all codecs bear {memory}")
