"""The manifest of a checkpoint, which vouches for its files. A manifest may be untrusted."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from atomo.errors import CheckpointError
from atomo.training.folder.run_folder import decoded

__all__ = [
    "Entry",
    "Manifest",
    "SettingValue",
    "encode_manifest",
    "file_names",
    "manifest_name",
    "parse_manifest",
    "step_of_data",
    "step_of_manifest",
]

SettingValue = str | int | float | bool

FORMAT = 1
MOST_STEP = 2**53  # a float represents every whole number up to this
LONGEST = 2**13  # characters of a setting: paths have 2^12
STEP = "step-([0-9]{8}|[1-9][0-9]{8,})"
MANIFEST = re.compile(STEP + r"\.json")
DATA = re.compile(STEP + r"\.(?:model|optimizer|worker-[0-9]+)\.safetensors")


@dataclass(frozen=True)
class Entry:
    """One file of a checkpoint."""

    name: str
    size: int  # bytes
    digest: str  # xxh3-128, in hexadecimal


@dataclass(frozen=True)
class Manifest:
    """The manifest of a checkpoint. Its files: model, optimizer, then one for each worker."""

    step: int
    config: Mapping[str, SettingValue]
    files: tuple[Entry, ...]


def manifest_name(step: int) -> str:
    """Returns the name of the manifest of `step`."""
    return f"step-{step:08}.json"


def file_names(step: int, workers: int) -> list[str]:
    """Returns the names of the files that the manifest of `step` lists, in order."""
    parts = ["model", "optimizer", *(f"worker-{rank}" for rank in range(1, workers + 1))]
    return [f"step-{step:08}.{part}.safetensors" for part in parts]


def step_of_manifest(name: str) -> int | None:
    """Returns the step of a manifest called `name`; None for another file."""
    match = MANIFEST.fullmatch(name)
    return int(match[1]) if match else None


def step_of_data(name: str) -> int | None:
    """Returns the step of a file of tensors called `name`; None for another file."""
    match = DATA.fullmatch(name)
    return int(match[1]) if match else None


def encode_manifest(manifest: Manifest) -> bytes:
    """Encodes a manifest as JSON."""
    files = [{"name": e.name, "bytes": e.size, "xxh3_128": e.digest} for e in manifest.files]
    head = {"format": FORMAT, "step": manifest.step, "config": dict(manifest.config)}
    return json.dumps({**head, "files": files}, indent=1).encode() + b"\n"


def parse_manifest(data: bytes, path: Path, step: int) -> Manifest:
    """Reads the manifest of `step` in `data`, which came from `path`.

    Raises:
        CheckpointError: `data` is no manifest, is of another format or step, or names other files
            than those of a checkpoint of `step` in its own folder.
    """
    match decoded(data):
        case {"format": int(version)} if version != FORMAT:
            raise CheckpointError(f"{path} has format {version}; this version reads {FORMAT}")
        case {"format": int(), "step": int(own), "config": dict(config), "files": list(files)}:
            if own != step or own > MOST_STEP:
                raise CheckpointError(
                    f"{path} is the manifest of step {own}; must be {step}, and at most {MOST_STEP}"
                )
            return Manifest(step, settings(config, path), entries(files, path, step))
    raise CheckpointError(f"{path} is not the manifest of a checkpoint: {data[:80]!r}")


def settings(config: Mapping[str, object], path: Path) -> dict[str, SettingValue]:
    """Checks each value of the configuration."""
    checked = {key: value for key, value in config.items() if isinstance(value, SettingValue)}
    if len(checked) < len(config):
        odd = next(key for key in config if key not in checked)
        raise CheckpointError(f"{path}: the value of {odd[:80]!r} is neither text nor a number")
    for key, value in checked.items():
        if isinstance(value, str) and len(key) + len(value) > LONGEST:
            raise CheckpointError(f"{path}: {key[:80]!r} has {len(value)} characters")
    return checked


def entries(files: Sequence[object], path: Path, step: int) -> tuple[Entry, ...]:
    """Checks the files; only the names that this step must have are accepted."""
    expected = file_names(step, len(files) - 2)
    if len(files) != len(expected):
        raise CheckpointError(f"{path} lists {len(files)} files; a checkpoint has at least 2")
    return tuple(entry(file, path, name) for file, name in zip(files, expected, strict=True))


def entry(file: object, path: Path, expected: str) -> Entry:
    match file:
        case {"name": str(name), "bytes": int(size), "xxh3_128": str(digest)}:
            if name != expected:
                raise CheckpointError(f"{path} lists {name[:80]!r} where {expected!r} must be")
            return Entry(name, size, digest)
    raise CheckpointError(f"{path}: {str(file)[:80]!r} is not an entry for {expected!r}")
