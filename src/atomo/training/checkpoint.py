"""Checkpoints: safetensors files and the JSON manifest that vouches for them.

    step-00000050.model.safetensors      parameters and buffers
    step-00000050.optimizer.safetensors  the state of the optimizer
    step-00000050.worker-1.safetensors   what the worker of rank 1 keeps back, and so on
    step-00000050.json                   step, configuration, and size and hash of each file

A checkpoint exists from the moment its manifest does, and the manifest appears last and goes first,
so nobody ever sees half a checkpoint. No pickle: a checkpoint may come from a stranger, and loading
it checks everything and runs nothing.
"""

import os
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import safetensors.torch
import xxhash
from safetensors import SafetensorError
from torch import Tensor

from atomo.errors import CheckpointError
from atomo.training.listing import CheckpointGone, found, latest, read_manifest, steps
from atomo.training.manifest import (
    Entry,
    Manifest,
    Setting,
    encode_manifest,
    file_names,
    manifest_name,
    step_of_data,
)
from atomo.training.plain_file import opened
from atomo.training.run_folder import (
    PATIENCE_S,
    TEMPORARY,
    Finished,
    Staging,
    Wait,
    finish,
    finished,
    names,
    sync_folder,
    unfinish,
)
from atomo.wire import tensor_file

__all__ = [
    "CheckpointGone",
    "Finished",
    "Snapshot",
    "finish",
    "finished",
    "latest",
    "load",
    "save",
    "steps",
    "sweep",
    "unfinish",
]

Part = Literal["model", "optimizer", "workers"]


@dataclass(frozen=True)
class Snapshot:
    """All that a run needs to go on as if it had never stopped. Any mapping may be empty."""

    step: int
    model: Mapping[str, Tensor]
    """Parameters and buffers, by their name in the model's `state_dict`."""
    optimizer: Mapping[str, Tensor]
    """By flat names such as "momentum_buffer/conv1.weight"."""
    workers: tuple[Mapping[str, Tensor], ...]
    """What the workers of rank 1, 2, ... keep back, by flat names."""
    config: Mapping[str, Setting]


def save(folder: Path, snapshot: Snapshot, keep: int = 0) -> Path:
    """Writes a checkpoint and returns the path of its manifest.

    Args:
        folder: created when it does not exist.
        snapshot: tensors of any device, stride or shared storage.
        keep: how many of the newest checkpoints stay; 0 keeps all.

    Raises:
        CheckpointError: it cannot be written, and those already there are intact; or an old one
            cannot be deleted.
    """
    path = folder / manifest_name(snapshot.step)
    # The order of `file_names`: what is read relies on it.
    parts = [snapshot.model, snapshot.optimizer, *snapshot.workers]
    files = file_names(snapshot.step, len(snapshot.workers))
    with Staging(folder) as staging:
        listed = [stage(staging, *file) for file in zip(files, parts, strict=True)]
        # Written last, so published last: from then on, and not before, there is a checkpoint.
        manifest = Manifest(snapshot.step, snapshot.config, tuple(listed))
        staging.write(path.name, encode_manifest(manifest))
        staging.publish()
    # Of an older checkpoint of this step with more workers, whose manifest has just been replaced.
    delete_data(folder, snapshot.step, spare=files)
    for step in steps(folder)[:-keep] if keep else []:
        if step != snapshot.step:
            delete(folder, step)
    return path


def load(
    folder: Path,
    step: int,
    *,
    parts: Collection[Part] = ("model", "optimizer", "workers"),
    patience_s: float = PATIENCE_S,
    wait: Wait = time.sleep,
) -> Snapshot:
    """Reads a checkpoint and checks it. Tensors are on the CPU; parts not asked for are empty.

    Raises:
        CheckpointGone: there is none for this step, and none came within `patience_s`.
        CheckpointError: it cannot be read, or is not what its manifest says.
    """
    return found(folder, step, lambda: attempt(folder, step, parts), patience_s, wait)


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


def stage(staging: Staging, name: str, tensors: Mapping[str, Tensor]) -> Entry:
    """Writes one file, still under a temporary name, tensor by tensor."""
    file, digest = tensor_file(tensors), xxhash.xxh3_128()

    def hashed() -> Iterator[memoryview]:
        for piece in file.pieces():
            digest.update(piece.data)
            yield piece.data

    staging.write_pieces(name, hashed(), file.size)
    return Entry(name, file.size, digest.hexdigest())


def attempt(folder: Path, step: int, parts: Collection[Part]) -> Snapshot:
    """Reads a checkpoint, once."""
    manifest = read_manifest(folder, step)
    model, optimizer, *workers = manifest.files
    return Snapshot(
        step=step,
        model=read(folder, model) if "model" in parts else {},
        optimizer=read(folder, optimizer) if "optimizer" in parts else {},
        workers=tuple(read(folder, w) for w in workers) if "workers" in parts else (),
        config=manifest.config,
    )


def read(folder: Path, entry: Entry) -> dict[str, Tensor]:
    """The tensors of one file, once its size and its hash are what the manifest says."""
    path = folder / entry.name
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size != entry.size:  # before anything is read: a sparse file may claim terabytes
            raise CheckpointError(f"{path} has {size} bytes; its manifest says {entry.size}")
        if size > (memory := os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")):
            raise CheckpointError(f"{path} has {size} bytes; this machine's memory has {memory}")
        data = file.read(size)
    # The parser sees the bytes only once they are those that were written.
    if xxhash.xxh3_128_hexdigest(data) != entry.digest:
        raise CheckpointError(f"{path} is damaged: its hash is not the one in its manifest")
    try:
        return safetensors.torch.load(data)
    except (SafetensorError, KeyError) as error:
        raise CheckpointError(f"{path} is not a safetensors file: {error}") from error


def delete(folder: Path, step: int) -> None:
    """Deletes a checkpoint, its manifest first."""
    remove(folder / manifest_name(step))
    # On the disk first: after a crash there must be no manifest whose files are gone.
    sync_folder(folder)
    delete_data(folder, step, spare=())


def delete_data(folder: Path, step: int, spare: Collection[str]) -> None:
    """Deletes the files of `step` that are not in `spare`."""
    for name in names(folder):
        if step_of_data(name) == step and name not in spare:
            remove(folder / name)


def remove(path: Path) -> None:
    """Removes a file that may be gone already."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise CheckpointError(f"cannot remove {path}: {error.strerror}") from error
