"""Checkpoints: safetensors files and the JSON manifest that vouches for them.

    step-00000050.model.safetensors      parameters and buffers
    step-00000050.optimizer.safetensors  the state of the optimizer
    step-00000050.worker-1.safetensors   residuals and buffers of the worker of rank 1, and so on
    step-00000050.json                   step, configuration, and size and hash of each file

A checkpoint exists while its manifest exists. The manifest is written last and deleted first, so
that no reader sees half a checkpoint. There is no pickle: a checkpoint may be untrusted, and
loading checks all of it and executes nothing.
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
from atomo.training.checkpoints.index import (
    CheckpointGone,
    latest,
    read_manifest,
    read_patiently,
    steps,
)
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
    """The complete state of a run after a step. Any mapping may be empty."""

    step: int
    model: Mapping[str, Tensor]
    """Parameters and buffers, by their name in the model's `state_dict`."""
    optimizer: Mapping[str, Tensor]
    """State of the optimizer, by flat names such as "momentum_buffer/conv1.weight"."""
    workers: tuple[Mapping[str, Tensor], ...]
    """Memories of the workers of rank 1, 2, ..., by flat names."""
    config: Mapping[str, SettingValue]


def save(folder: Path, snapshot: Snapshot, keep: int = 0) -> Path:
    """Writes a checkpoint and returns the path of its manifest.

    Args:
        folder: created if it does not exist.
        snapshot: tensors of any device, stride or shared storage.
        keep: number of the newest checkpoints to keep; 0 keeps all.

    Raises:
        CheckpointError: the checkpoint cannot be written, and existing checkpoints are intact; or
            an old checkpoint cannot be deleted.
    """
    path = write(folder, snapshot)
    if keep:
        prune(folder, snapshot.step, keep)
    return path


def write(folder: Path, snapshot: Snapshot) -> Path:
    """Writes a checkpoint as `save` does, without deleting old checkpoints."""
    path = folder / manifest_name(snapshot.step)
    # In the order of `file_names`, which readers rely on.
    parts = [snapshot.model, snapshot.optimizer, *snapshot.workers]
    files = file_names(snapshot.step, len(snapshot.workers))
    with Staging(folder) as staging:
        entries = [stage(staging, *file) for file in zip(files, parts, strict=True)]
        # The manifest is written last, and so published last: the checkpoint exists from then on.
        manifest = Manifest(snapshot.step, snapshot.config, tuple(entries))
        staging.write(path.name, encode_manifest(manifest))
        staging.publish()
    # Delete files of an older checkpoint of this step with more workers: its manifest is replaced.
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
    """Reads a checkpoint and checks it. Tensors are on the CPU; other parts than `parts` are empty.

    Raises:
        CheckpointGone: the step has no checkpoint, and none appears within `patience_s`.
        CheckpointError: the checkpoint cannot be read, or differs from its manifest.
    """
    return read_patiently(folder, step, lambda: attempt(folder, step, parts), patience_s, wait)


def stage(staging: Staging, name: str, tensors: Mapping[str, Tensor]) -> Entry:
    """Writes one file under a temporary name, tensor by tensor."""
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
