"""Removal of old checkpoints from a run folder, and of files that killed runs left half done.

A checkpoint goes manifest first, and only once a newer one was read back and found whole.
"""

from collections.abc import Collection
from pathlib import Path

from atomo.errors import CheckpointError
from atomo.training.checkpoints.data_files import verify
from atomo.training.checkpoints.index import steps
from atomo.training.checkpoints.manifest import manifest_name, step_of_data
from atomo.training.folder.run_folder import TEMPORARY, explained, names, sync_folder

__all__ = ["delete_data", "prune", "sweep"]


def prune(folder: Path, newest: int, keep: int) -> None:
    """Deletes all checkpoints up to `newest` but the last `keep`, once `newest` is found whole.

    Those of later steps stay: a run that goes on from an earlier one, since later ones are damaged,
    has them still before it.

    Raises:
        CheckpointError: `newest` is not what was written, and no other was deleted; or an old one
            cannot be deleted.
    """
    old = [step for step in steps(folder, patience_s=0.0) if step < newest]
    doomed = old[: len(old) + 1 - keep]
    if doomed:
        verify(folder, newest)
    for step in doomed:
        delete(folder, step)


def sweep(folder: Path) -> list[str]:
    """Removes what killed runs left half done, and returns the names.

    Call it before anything is written: what another process is writing right now goes too.

    Raises:
        CheckpointError: the folder cannot be listed, or a file cannot be removed.
    """
    swept = []
    for name in names(folder):
        step = step_of_data(name)
        # Asked by name, since a listing that NFS remembers may not show the manifest yet.
        orphan = step is not None and not (folder / manifest_name(step)).exists()
        if orphan or (name.startswith(".") and name.endswith(TEMPORARY)):
            remove(folder / name)
            swept.append(name)
    return swept


def delete(folder: Path, step: int) -> None:
    """Deletes a checkpoint, its manifest first."""
    remove(folder / manifest_name(step))
    # On the disk first: after a crash there must be no manifest whose files are gone.
    with explained(folder / manifest_name(step), 0):
        sync_folder(folder)
    delete_data(folder, step, spare=())


def delete_data(folder: Path, step: int, spare: Collection[str]) -> None:
    """Deletes the files of `step` that are not in `spare`."""
    for name in names(folder, patience_s=0.0):
        if step_of_data(name) == step and name not in spare:
            remove(folder / name)


def remove(path: Path) -> None:
    """Removes a file that may be gone already."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise CheckpointError(f"cannot remove {path}: {error.strerror}") from error
