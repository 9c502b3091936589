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

__all__ = ["CheckpointGone", "found", "latest", "read_manifest", "readable", "recorded", "steps"]

T = TypeVar("T")


class CheckpointGone(CheckpointError):
    """The checkpoint is not there, or no longer: older ones are deleted as training goes on."""


def steps(folder: Path, *, patience_s: float = PATIENCE_S, wait: Wait = time.sleep) -> list[int]:
    """Returns the steps that have a checkpoint, in order; none if there is no such folder.

    Raises:
        CheckpointError: the folder cannot be listed.
    """
    found = map(step_of_manifest, names(folder, patience_s, wait))
    return sorted(step for step in found if step is not None)


def latest(folder: Path) -> int | None:
    """Returns the last step that has a checkpoint.

    Raises:
        CheckpointError: the folder cannot be listed.
    """
    return max(steps(folder), default=None)


def readable(folder: Path) -> int | None:
    """Returns the last step with a valid manifest, whatever its other files are.

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
        CheckpointGone: there is none for this step, and none came while NFS may have hidden it.
        CheckpointError: its manifest cannot be read, or is none.
    """
    return found(folder, step, lambda: read_manifest(folder, step)).config


def read_manifest(folder: Path, step: int) -> Manifest:
    """Reads the manifest of a step, once."""
    path = folder / manifest_name(step)
    return parse_manifest(read_whole(path), path, step)


def found(
    folder: Path,
    step: int,
    attempt: Callable[[], T],
    patience_s: float = PATIENCE_S,
    wait: Wait = time.sleep,
) -> T:
    """Retries an attempt to read a part of a checkpoint; returns its result.

    Raises:
        CheckpointGone: there is none for this step, and none came within `patience_s`.
        CheckpointError: it cannot be read.
    """
    try:
        return patiently(attempt, patience_s, wait)
    except OSError as error:
        # Gone is what no listing shows: a file that is only unreadable is an error of another kind.
        there = steps(folder, patience_s=patience_s, wait=wait)
        if error.errno in TRANSIENT and step not in there:
            raise CheckpointGone(
                f"{folder} has no checkpoint of step {step}; it has {there or 'none'}"
            ) from error
        path = error.filename or folder / manifest_name(step)
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
