"""Settings that a checkpoint records, and those that must be equal to continue from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Final

from atomo.codecs import make_codec
from atomo.config.checks import ANYWAY
from atomo.config.comm_rules import fitted_codec
from atomo.config.comm_types import COMM_TYPES, name_of_stored, stored_settings
from atomo.config.settings import Settings
from atomo.core.arguments import flag
from atomo.errors import ConfigError
from atomo.options.local_steps import read_mix, read_overlap

__all__ = ["METHOD", "STATE", "UNSAID", "WEIGHTS", "check_identity", "record"]

LAUNCH_ONLY: Final = {
    "hostfile", "slurm", "mpi_args", "evaluator", "resume", "train_dir", "data_dir", "weights",
    "log_format", "min_workers", "spares", "max_strikes", "max_restarts", "checkpoint_every",
    "cuda_aware_mpi", "auto_share", "report",
}  # fmt: skip
WEIGHTS: Final = ("task", "network", "image_size")
"""Settings that must always be equal: the weights of a checkpoint depend on them."""
STATE: Final = (
    "dataset",
    "batch_size",
    "batches_per_step",
    "optimizer",
    "memory",
    "dense_below",
    "dense_steps",
    "seed",
    "local_steps",
    "local_seconds",
    "fragments",
    "overlap",
)
"""Settings that must be equal unless `--resume anyway` overrides them."""
METHOD: Final = ("code", "code_schedule", "code_for", "momentum", "nesterov", "outer", "mix",
                 "outer_mean", "transform")  # fmt: skip
"""Settings that must be equal as well if a run continues in its own folder."""
PLANNED: Final = frozenset({"code", "code_schedule", "code_for"})
"""Settings that a plan of `--code auto` changes during a run."""
# Values of settings that checkpoints of earlier versions do not record.
UNSAID: Final[Mapping[str, object]] = MappingProxyType(
    {
        "task": "images",
        "batches_per_step": 1,
        "dense_below": 0,
        "dense_steps": 0,
        "code_schedule": "",
        "code_for": "",
        "nesterov": False,
        "local_steps": "1",
        "local_seconds": 0.0,
        "outer": "auto",
        "outer_mean": "workers",
        "fragments": 1,
        "overlap": "0",
        "mix": "0",
        "transform": "none",
    }
)


READERS: Final[Mapping[str, Callable[[str], object]]] = MappingProxyType(
    {"overlap": read_overlap, "mix": read_mix}
)
"""The options of which one meaning has several forms."""


def record(settings: Settings) -> dict[str, str | int | float | bool]:
    """Returns the settings that a checkpoint records: those that change what the run computes."""
    return {
        name: value
        for name, value in stored_settings(asdict(settings)).items()
        if value is not None and name not in LAUNCH_ONLY
    }


def check_identity(
    settings: Settings, recorded: Mapping[str, object], folder: Path, *, planned: bool = False
) -> list[str]:
    """Compares the settings of a run with those of the checkpoint that it continues from.

    Args:
        settings: settings of the run.
        recorded: settings of the checkpoint.
        folder: the folder of the checkpoint, for the error.
        planned: True if a plan chose the codecs: they may differ from those of the checkpoint.

    Returns:
        The differences that `--resume anyway` overrides, as "--memory residual (before: none)".

    Raises:
        ConfigError: a setting differs that must be equal.
    """
    weights = differences(settings, recorded, WEIGHTS)
    if weights:
        raise ConfigError(
            f"{weights[0]}: the weights of the checkpoint in {folder} are of another model; give "
            "the same, another --train-dir, or --resume never"
        )
    compared = STATE if settings.resumes_elsewhere else (*METHOD, *STATE)
    names = [name for name in compared if not (planned and name in PLANNED)]
    changed = differences(settings, recorded, names)
    if changed and settings.resume != ANYWAY:
        raise ConfigError(
            f"the checkpoint in {folder} was made with other settings: {', '.join(changed)}; give "
            "the same, another --train-dir, --resume never, or --resume anyway to continue with "
            "the new ones"
        )
    return changed


def differences(
    settings: Settings, recorded: Mapping[str, object], names: Iterable[str]
) -> list[str]:
    """Returns the settings of these names that differ from the recorded ones."""
    pairs = [
        (name, getattr(settings, name), recorded.get(name, UNSAID.get(name))) for name in names
    ]
    return [
        f"{flag(name)} {shown(own)} (before: {shown(earlier)})"
        for name, own, earlier in pairs
        if meaning(name, own) != meaning(name, earlier)
        and not (name in PLANNED and is_adapted(settings, recorded))
    ]


def meaning(name: str, value: object) -> object:
    """Returns a setting in one form: checkpoints have had numbers for some options that are texts.

    >>> meaning("mix", 0.0) == meaning("mix", "0"), meaning("overlap", "Round")
    (True, 'round')
    """
    try:
        return READERS[name](str(value)) if name in READERS else value
    except ConfigError:  # not a setting of this version: it differs
        return value


def is_adapted(settings: Settings, recorded: Mapping[str, object]) -> bool:
    """True if the codecs differ only because another communicator adapts them.

    PowerSGD, for example, makes `svd` reshape gradients by filters.
    """
    comm_type = name_of_stored(str(recorded.get("comm_type", "")))
    if comm_type == settings.comm_type or comm_type not in COMM_TYPES:
        return False
    try:
        earlier = make_codec(str(recorded.get("code")))
        adapted = fitted_codec(make_codec(settings.code), comm_type)
        return fitted_codec(earlier, settings.comm_type) == make_codec(settings.code) or (
            adapted == earlier
        )
    except ConfigError:  # this communicator takes no such codec
        return False


def shown(value: object) -> str:
    """Returns a setting's value as a user gives it; an empty one as a pair of quotes."""
    return "''" if value == "" else ("no", "yes")[value] if isinstance(value, bool) else str(value)
