"""Resolution of a run's codecs and memory from its settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Any, Final

from atomo.codecs import Codec, Law, make_codec
from atomo.codecs.by_name import ByName
from atomo.config.checks import wants_gpu
from atomo.config.comm_rules import fitted_codec, own_memory
from atomo.config.comm_types import COMM_TYPES, PARAMETER_SERVER
from atomo.core.names import resolve
from atomo.errors import ConfigError
from atomo.memory import NoMemory, check_fits, default_memory, kind_of
from atomo.options.rates import RATES, VOTES_RATE
from atomo.options.schedule import Phase, parse_schedule, phases, schedule_text, warm_up_schedule

__all__ = [
    "AUTO_CODEC",
    "FLAGS",
    "check_auto",
    "check_code",
    "codecs_text",
    "default_rate",
    "delays_all_entries",
    "draws_atoms",
    "final_codec",
    "fitted_by_name",
    "fitted_phases",
    "fitted_schedule",
    "override_recipe",
    "required_memory",
    "starts_at_first_step",
]

AUTO_CODEC: Final = "auto"
# Options of the published scripts that set a value of the codec, and the name of that value.
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
    """Raises ConfigError for settings that contradict `--code auto`, such as other choices of
    codecs.
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
            f"--code auto times codecs on the CPU, and these times do not hold for GPUs "
            f"(--enable-gpu {enable_gpu}): give a --code, such as bf16 for fast links, and topk or "
            "'svd(rank=3)' for slow links; `atomo throughput` with the same options compares a "
            "codec with dense gradients"
        )


def override_recipe(recipe: Mapping[str, Any], chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of a recipe, overridden by the chosen settings.

    A recipe's schedule and memory belong to its codec. A chosen codec, ratio or warm-up that
    differs drops the recipe's schedule, and a different codec drops the recipe's memory as well.
    """
    settings = dict(recipe)
    own = make_codec(settings["code"])
    changed = changes(own, chosen)
    if changed:
        settings["code"] = str(replace(own, **changed))  # type: ignore[type-var]
    code = chosen.get("code", "")
    if changed or chosen.get("warmup_epochs") or (code and not is_codec(code, own)):
        settings.pop("code_schedule", None)
    if code and not is_codec(code, own, by_name=True):
        settings.pop("memory", None)
    return {**settings, **chosen}


def changes(codec: Codec[Any], chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of a recipe's codec that the published flags change."""
    names = {} if chosen.get("code") else {f.name for f in fields(codec)}  # type: ignore[arg-type]
    flags = {setting: chosen.get(name) for name, setting in FLAGS.items() if setting in names}
    return {
        setting: value
        for setting, value in flags.items()
        if value is not None and value != getattr(codec, setting)
    }


def is_codec(code: str, codec: Codec[Any], *, by_name: bool = False) -> bool:
    """True if a specification means this codec; with `by_name` its settings may differ."""
    if code.lower() == AUTO_CODEC:
        return False
    specified = make_codec(code)
    return specified.id == codec.id if by_name else specified == codec


def starts_at_first_step(planned: Sequence[Phase]) -> bool:
    """True if a schedule has a codec for the first step, so that no step uses `--code`."""
    return bool(planned) and planned[0].epoch == 0


def check_code(code: str, code_schedule: str) -> None:
    """Raises ConfigError for a codec that no step uses, because a schedule replaces it."""
    planned = parse_schedule(code_schedule)
    if code.lower() == AUTO_CODEC or not starts_at_first_step(planned):
        return
    if make_codec(code) not in [phase.codec for phase in planned]:
        raise ConfigError(
            f"no step uses --code {code}: --code-schedule {code_schedule!r} begins at epoch 0; "
            "leave out --code, or give --code-schedule '' or a schedule that begins later"
        )


def codecs_text(code: str, code_schedule: str, code_for: str) -> str:
    """Describes all codecs of a run, for the first line of its output.

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
    code: str, flags: Mapping[str, int | float | None], code_schedule: str
) -> Codec[Any]:
    """Returns the codec of the last step: the last codec of a schedule that begins at epoch 0, else
    `code` with its flags.
    """
    planned = parse_schedule(code_schedule)
    return planned[-1].codec if starts_at_first_step(planned) else with_flags(code, flags)


def with_flags(code: str, flags: Mapping[str, int | float | None]) -> Codec[Any]:
    """Returns a codec with the values of the published flags. Flags that the codec does not have
    are ignored.

    Args:
        code: specification of the codec.
        flags: values by name of a codec's setting; None: not given.

    Raises:
        ConfigError: the specification and a flag give different values of one setting.
    """
    codec = make_codec(code)
    names = {f.name for f in fields(codec)}  # type: ignore[arg-type]
    values = {name: value for name, value in flags.items() if value is not None and name in names}
    for name, value in values.items():
        if f"{name}=" in code.replace(" ", "") and getattr(codec, name) != value:
            raise ConfigError(f"--code {code!r} contradicts the flag that says {name}={value}")
    changed: Codec[Any] = replace(codec, **values)  # type: ignore[type-var]
    return changed


def fitted_phases(codec: Codec[Any], code_schedule: str, comm_type: str) -> tuple[Phase, ...]:
    """Returns the phases of `--code-schedule`, with codecs adapted to a communicator."""
    planned = phases(str(codec), code_schedule)
    return tuple(replace(phase, codec=fitted_codec(phase.codec, comm_type)) for phase in planned)


def fitted_by_name(by_name: ByName, comm_type: str) -> ByName:
    """Returns the codecs of single parameters, adapted to a communicator."""
    return by_name.mapped(lambda codec: fitted_codec(codec, comm_type))


def fitted_schedule(
    codec: Codec[Any], code_schedule: str, warmup_epochs: int, comm_type: str
) -> str:
    """Returns the given schedule, or the schedule of the warm-up.

    Raises:
        ConfigError: both are given.
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
    """Returns the default learning rate of a run.

    Raises:
        ConfigError: the optimizer is unknown.
    """
    name = resolve("optimizer", optimizer, RATES)
    return VOTES_RATE if any(codec.votes for codec in codecs) else RATES[name]


def required_memory(
    codecs: Sequence[Codec[Any]], comm_type: str, momentum: float, optimizer: str = "sgd"
) -> str:
    """Returns the memory of the last codec that needs a memory which all codecs accept.

    Lossy codecs have precedence over nearly lossless ones, which can do without memory.

    Args:
        codecs: codecs of the schedule, in order, then codecs of single parameters.
        comm_type: the communicator, which may prescribe a memory.
        momentum: momentum of the optimizer; 0: none.
        optimizer: optimizer, as in `default_memory`.

    Raises:
        ConfigError: a lossy codec needs a memory that another codec refuses.
    """
    own = own_memory(comm_type, momentum)
    if own is not None:
        return own
    needed = {codec: default_memory(codec, momentum, optimizer) for codec in reversed(codecs)}
    candidates = [(memory, codec) for codec, memory in needed.items() if memory != NoMemory.id]
    candidates.sort(key=lambda pair: pair[1].near_lossless)  # lossy codecs first
    borne = next((memory for memory, _ in candidates if all_accept(codecs, memory)), NoMemory.id)
    if borne == NoMemory.id and (
        starved := [codec for _, codec in candidates if not codec.near_lossless]
    ):
        raise memory_refusal(codecs, needed[starved[0]], starved[0])
    return borne


def delays_all_entries(codecs: Sequence[Codec[Any]], memory: str) -> bool:
    """True if error feedback sends a part of every entry late, and not some entries whole."""
    return kind_of(memory).feeds_back and any(
        not (codec.sparsifies or codec.near_lossless or Law.LOSSLESS in codec.laws)
        for codec in codecs
    )


def draws_atoms(codecs: Sequence[Codec[Any]]) -> bool:
    """True if a codec sends atoms that it draws, whose noise does not shorten the steps of Adam."""
    return any(codec.id == "svd" and codec.amplifies_noise for codec in codecs)


def all_accept(codecs: Sequence[Codec[Any]], memory: str) -> bool:
    """True if no codec is refused with this memory."""
    try:
        for codec in codecs:
            check_fits(codec, memory)
    except ConfigError:
        return False
    return True


def memory_refusal(codecs: Sequence[Codec[Any]], memory: str, needs_it: Codec[Any]) -> ConfigError:
    """Returns the error of a codec that refuses the memory which another codec needs."""
    try:
        for codec in codecs:
            check_fits(codec, memory)
    except ConfigError as error:
        return ConfigError(f"{error}; --memory auto took {memory}, which {needs_it} needs")
    raise AssertionError(f"all codecs accept {memory}")
