"""Settings that a checkpoint records, and those that must be equal to resume from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Final

from atomo.config.comm_types import stored_settings
from atomo.config.settings import Settings
from atomo.core.arguments import flag
from atomo.errors import ConfigError

__all__ = ["IDENTITY", "UNSAID", "check_identity", "record"]

LAUNCH_ONLY: Final = {
    "hostfile", "slurm", "mpi_args", "evaluator", "resume", "train_dir", "data_dir", "weights",
    "log_format", "min_workers", "spares", "max_strikes", "max_restarts", "checkpoint_every",
    "cuda_aware_mpi", "auto_share",
}  # fmt: skip
# What a run must have in common with a checkpoint that it continues from.
IDENTITY: Final = (
    "task",
    "network",
    "dataset",
    "image_size",
    "batch_size",
    "batches_per_step",
    "optimizer",
    "memory",
    "dense_below",
    "dense_steps",
    "seed",
)
# By checkpoints of earlier versions.
UNSAID: Final[Mapping[str, object]] = MappingProxyType(
    {"task": "images", "batches_per_step": 1, "dense_below": 0, "dense_steps": 0}
)


def record(settings: Settings) -> dict[str, str | int | float | bool]:
    """Returns the settings that a checkpoint records: what the run computes, and not where."""
    return {
        name: value
        for name, value in stored_settings(asdict(settings)).items()
        if value is not None and name not in LAUNCH_ONLY
    }


def check_identity(settings: Settings, recorded: Mapping[str, object], where: Path) -> None:
    """Raises ConfigError where a run cannot continue from a checkpoint made with other settings."""
    for name in IDENTITY:
        mine, theirs = getattr(settings, name), recorded.get(name, UNSAID.get(name))
        if mine != theirs:
            raise ConfigError(
                f"{flag(name)} is {mine}, but the checkpoint in {where} was made with {theirs}; "
                "give the same, another --train-dir, or --resume never"
            )
