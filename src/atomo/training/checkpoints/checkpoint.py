"""Checkpoints: safetensors files and the JSON manifest that vouches for them.

    step-00000050.model.safetensors      parameters and buffers
    step-00000050.optimizer.safetensors  the state of the optimizer
    step-00000050.worker-1.safetensors   what the worker of rank 1 keeps back, and so on
    step-00000050.json                   step, configuration, and size and hash of each file

A checkpoint exists from the moment its manifest does, and the manifest appears last and goes first,
so nobody ever sees half a checkpoint. No pickle: a checkpoint may come from a stranger, and loading
it checks everything and runs nothing.
"""

import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import xxhash
from torch import Tensor

from atomo.errors import CheckpointError
from atomo.training.checkpoints.data_files import read
from atomo.training.checkpoints.index import CheckpointGone, found, latest, read_manifest, steps
from atomo.training.checkpoints.manifest import (
    Entry,
    Manifest,
    SettingValue,
    encode_manifest,
    file_names,
    manifest_name,
)
from atomo.training.checkpoints.pruning import delete_data, prune, sweep
from atomo.training.folder.finished_marker import Finished, finish, finished, unfinish
from atomo.training.folder.run_folder import PATIENCE_S, Staging, Wait
from atomo.wire import tensor_file

__all__ = [
    "CheckpointGone",
    "Finished",
    "Snapshot",
    "finish",
    "finished",
    "latest",
    "load",
    "prune",
    "save",
    "steps",
    "sweep",
    "unfinish",
    "write",
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
    """Memories of the workers of rank 1, 2, ..., by flat names."""
    config: Mapping[str, SettingValue]


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
    path = write(folder, snapshot)
    if keep:
        prune(folder, snapshot.step, keep)
    return path


def write(folder: Path, snapshot: Snapshot) -> Path:
    """Does the first half of `save`: once it returns, the checkpoint is there."""
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
    with suppress(CheckpointError):
        delete_data(folder, snapshot.step, spare=files)
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
