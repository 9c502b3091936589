"""Removal of old checkpoints from a run folder, and of the temporary files of killed runs.

The manifest of a checkpoint is deleted first, and only after a newer checkpoint was read back and
is undamaged.
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
    """Deletes all checkpoints up to `newest` except the last `keep`, after a check of `newest`.

    Checkpoints of later steps stay: they are damaged if the run continued from an earlier one, and
    the run will overwrite them.

    Raises:
        CheckpointError: `newest` is damaged, and no checkpoint was deleted; or an old checkpoint
            cannot be deleted.
    """
    old = [step for step in steps(folder, patience_s=0.0) if step < newest]
    doomed = old[: len(old) + 1 - keep]
    if doomed:
        verify(folder, newest)
    for step in doomed:
        delete(folder, step)


def sweep(folder: Path) -> list[str]:
    """Removes incomplete files of killed runs, and returns their names.

    Call it before anything is written: it also removes files that a process is still writing.

    Raises:
        CheckpointError: the folder cannot be listed, or a file cannot be removed.
    """
    swept = []
    for name in names(folder):
        step = step_of_data(name)
        # Looked up by name, since a listing in the cache of NFS may not show the manifest yet.
        orphan = step is not None and not (folder / manifest_name(step)).exists()
        if orphan or (name.startswith(".") and name.endswith(TEMPORARY)):
            remove(folder / name)
            swept.append(name)
    return swept


def delete(folder: Path, step: int) -> None:
    """Deletes a checkpoint, its manifest first."""
    remove(folder / manifest_name(step))
    # Sync before the files are deleted: no crash may leave a manifest without its files.
    with explained(folder / manifest_name(step), 0):
        sync_folder(folder)
    delete_data(folder, step, spare=())


def delete_data(folder: Path, step: int, spare: Collection[str]) -> None:
    """Deletes the files of `step` that are not in `spare`."""
    for name in names(folder, patience_s=0.0):
        if step_of_data(name) == step and name not in spare:
            remove(folder / name)


def remove(path: Path) -> None:
    """Removes a file, if it exists."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise CheckpointError(f"cannot remove {path}: {error.strerror}") from error
