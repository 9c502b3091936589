"""The tensor files of a checkpoint: read, or only checked, against their manifest."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

import safetensors.torch
import xxhash
from torch import Tensor

from atomo.core.safe_read import memory_bytes, open_plain
from atomo.errors import CheckpointError
from atomo.training.checkpoints.index import read_manifest, steps
from atomo.training.checkpoints.manifest import Entry, manifest_name
from atomo.workloads.models.pretrained.tensor_files import READ_ERRORS

__all__ = ["last_whole", "read", "verify"]

PIECE: Final = 2**20  # bytes


def read(folder: Path, entry: Entry) -> dict[str, Tensor]:
    """Reads the tensors of a file after a check of its size and its hash."""
    path = folder / entry.name
    with open_plain(path) as file:
        size = os.fstat(file.fileno()).st_size
        check_size(path, size, entry)  # before reading: a sparse file may have terabytes
        if size > (memory := memory_bytes()):
            raise CheckpointError(f"{path} has {size} bytes; this machine's memory has {memory}")
        data = file.read(size)
    # The parser only sees bytes with the hash in the manifest.
    check_hash(path, xxhash.xxh3_128_hexdigest(data), entry)
    try:
        return safetensors.torch.load(data)
    except READ_ERRORS as error:
        raise CheckpointError(f"{path} is not a safetensors file: {error}") from error


def verify(folder: Path, step: int) -> None:
    """Raises CheckpointError unless each file of a checkpoint has its size and hash."""
    with unread(folder / manifest_name(step)):
        for entry in read_manifest(folder, step).files:
            with open_plain(folder / entry.name) as file:
                check_size(folder / entry.name, os.fstat(file.fileno()).st_size, entry)
                check_hash(folder / entry.name, hash_of(file), entry)


def last_whole(folder: Path) -> int | None:
    """Returns the last step with an undamaged checkpoint, or None.

    Raises:
        CheckpointError: the folder cannot be listed.
    """
    for step in reversed(steps(folder)):
        with suppress(CheckpointError):
            verify(folder, step)
            return step
    return None


def check_size(path: Path, size: int, entry: Entry) -> None:
    """Raises CheckpointError if a file has another size than its manifest says."""
    if size != entry.size:
        raise CheckpointError(f"{path} has {size} bytes; its manifest says {entry.size}")


def check_hash(path: Path, digest: str, entry: Entry) -> None:
    """Raises CheckpointError if a file has another hash than its manifest says."""
    if digest != entry.digest:
        raise CheckpointError(f"{path} is damaged: its hash differs from its manifest")


def hash_of(file: BinaryIO) -> str:
    """Hashes a file, piece by piece."""
    digest = xxhash.xxh3_128()
    while piece := file.read(PIECE):
        digest.update(piece)
    return digest.hexdigest()


@contextmanager
def unread(path: Path) -> Iterator[None]:
    """Translates an OSError of a read into CheckpointError."""
    try:
        yield
    except OSError as error:
        name = error.filename or path
        raise CheckpointError(f"cannot read {name}: {error.strerror}") from error
