"""The partition that a run found, in its folder: for who continues it, and for who asks why."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Final

import xxhash

from atomo.config import Settings
from atomo.errors import CheckpointError
from atomo.fusion import shapes
from atomo.training.found import Found
from atomo.training.job import Job
from atomo.training.plain_file import read_whole
from atomo.training.run_folder import Staging, decoded

__all__ = ["FUSION_FILE", "find_kept", "job_hash", "keep_found"]

FUSION_FILE: Final = "fusion.json"
MATTER: Final = (
    "code", "code_for", "code_schedule", "memory", "comm_type", "n", "batch_size",
    "batches_per_step", "network", "dataset", "precision", "enable_gpu", "dense_below",
)  # fmt: skip


def job_hash(job: Job, way: str) -> str:
    """Of what a partition was found for: settings that say what is computed and sent, and the
    parameters. Hosts are not among it: a run that goes on elsewhere keeps its messages, and so its
    bits.
    """
    settings = asdict(job.settings)
    said = [way, *(f"{name}={settings[name]}" for name in MATTER)]
    said += [f"{name}{tuple(shape)}" for name, shape in shapes(job.model)]
    return xxhash.xxh3_64_hexdigest("\n".join(said).encode())


def find_kept(settings: Settings, job: str) -> Found | None:
    """What the folder that the run continues in has for such a job.

    Raises:
        CheckpointError: it has a file that cannot be read.
    """
    if settings.resume == "never":
        return None
    folder = settings.train_dir if settings.resume == "auto" else settings.resume
    path = Path(folder) / FUSION_FILE
    try:
        found = Found.read(decoded(read_whole(path)))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path} cannot be read as the messages of a run: {error}; take it away, and they are "
            "found anew"
        ) from error
    return found if found.job == job else None


def keep_found(folder: Path, found: Found) -> None:
    """Writes it.

    Raises:
        CheckpointError: it cannot be written.
    """
    with Staging(folder) as staging:
        staging.write(FUSION_FILE, json.dumps(found.record(), indent=1).encode())
        staging.publish()
