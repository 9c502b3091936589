"""Index of a run's checkpoints and their settings, from manifests alone."""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from atomo.core.safe_read import read_whole
from atomo.errors import CheckpointError
from atomo.training.checkpoints.manifest import (
    Manifest,
    SettingValue,
    manifest_name,
    parse_manifest,
    step_of_manifest,
)
from atomo.training.folder.run_folder import PATIENCE_S, TRANSIENT, Wait, names, patiently

__all__ = [
    "CheckpointGone",
    "latest",
    "read_manifest",
    "read_patiently",
    "readable",
    "recorded",
    "steps",
]

T = TypeVar("T")


class CheckpointGone(CheckpointError):
    """The checkpoint does not exist, or was deleted: training deletes old checkpoints."""


def steps(folder: Path, *, patience_s: float = PATIENCE_S, wait: Wait = time.sleep) -> list[int]:
    """Returns the steps that have a checkpoint, in order; an empty list without such a folder.

    Raises:
        CheckpointError: the folder cannot be listed.
    """
    numbers = map(step_of_manifest, names(folder, patience_s, wait))
    return sorted(step for step in numbers if step is not None)


def latest(folder: Path) -> int | None:
    """Returns the last step that has a checkpoint.

    Raises:
        CheckpointError: the folder cannot be listed.
    """
    return max(steps(folder), default=None)


def readable(folder: Path) -> int | None:
    """Returns the last step with a valid manifest; the other files are not checked.

    Raises:
        CheckpointError: the folder cannot be listed.
    """
    for step in reversed(steps(folder)):
        with suppress(CheckpointError, OSError):
            read_manifest(folder, step)
            return step
    return None


def recorded(folder: Path, step: int) -> Mapping[str, SettingValue]:
    """Returns the settings of a checkpoint.

    Raises:
        CheckpointGone: the step has no checkpoint, and none appears while NFS may hide it.
        CheckpointError: its manifest cannot be read, or is malformed.
    """
    return read_patiently(folder, step, lambda: read_manifest(folder, step)).config


def read_manifest(folder: Path, step: int) -> Manifest:
    """Reads the manifest of a step, once."""
    path = folder / manifest_name(step)
    return parse_manifest(read_whole(path), path, step)


def read_patiently(
    folder: Path,
    step: int,
    attempt: Callable[[], T],
    patience_s: float = PATIENCE_S,
    wait: Wait = time.sleep,
) -> T:
    """Retries an attempt to read a part of a checkpoint; returns its result.

    Raises:
        CheckpointGone: the step has no checkpoint, and none appears within `patience_s`.
        CheckpointError: the checkpoint cannot be read.
    """
    try:
        return patiently(attempt, patience_s, wait)
    except OSError as error:
        # A checkpoint is gone only if the listing does not show it; else a file is unreadable.
        existing = steps(folder, patience_s=patience_s, wait=wait)
        if error.errno in TRANSIENT and step not in existing:
            raise CheckpointGone(
                f"{folder} has no checkpoint of step {step}; it has {existing or 'none'}"
            ) from error
        path = error.filename or folder / manifest_name(step)
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
