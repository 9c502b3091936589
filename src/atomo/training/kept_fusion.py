"""The partition that a run found, in its folder: for who continues it, and for who asks why."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Final

import xxhash

from atomo.config import Settings
from atomo.errors import CheckpointError
from atomo.fusion import shapes
from atomo.training.found import Found
from atomo.training.job import Job
from atomo.training.plan_records import continued, in_force, moved, with_earlier
from atomo.training.run_folder import Staging

__all__ = ["FUSION_FILE", "find_kept", "job_hash", "keep_found"]

FUSION_FILE: Final = "fusion.json"
MATTER: Final = (
    "code", "code_for", "code_schedule", "memory", "comm_type", "n", "batch_size",
    "batches_per_step", "network", "dataset", "precision", "enable_gpu", "dense_below",
)  # fmt: skip


def job_hash(job: Job, way: str) -> str:
    """Of what a partition was found for, beside hosts: settings that say what is computed and sent,
    and the parameters.
    """
    settings = asdict(job.settings)
    said = [way, *(f"{name}={settings[name]}" for name in MATTER)]
    said += [f"{name}{tuple(shape)}" for name, shape in shapes(job.model)]
    return xxhash.xxh3_64_hexdigest("\n".join(said).encode())


def short_hash(job: str, settings: Settings) -> str:
    """Returns the hash of a job too short to measure, with its length: a longer one is measured."""
    length = settings.epochs, settings.max_steps, settings.auto_share
    return xxhash.xxh3_64_hexdigest(f"{job} {length}".encode())


def find_kept(
    settings: Settings,
    job: str,
    hosts: tuple[str, ...] = (),
    say: Callable[[str], object] = lambda why: None,
) -> Found | None:
    """What served where the run is continued, if it is of such a job on these hosts.

    Args:
        settings: with a `--fusion` that is searched.
        job: its hash.
        hosts: of the job, by rank.
        say: told why there is something that does not serve.

    Raises:
        CheckpointError: there is a file that cannot be read.
    """
    place = continued(settings)
    if place is None:
        return None
    folder, step = place
    path = folder / FUSION_FILE
    found = read_found(path, step)
    if found is None:
        return None
    wanted = short_hash(job, settings) if found.why else job
    other = (
        "" if found.job == wanted else "it is of other codecs, another network or other settings"
    )
    if not (why := other or moved(found.hosts, hosts)):
        return found
    say(f"{path} does not serve this job: {why}; messages are measured and found anew")
    return None


def read_found(path: Path, step: int) -> Found | None:
    """The partition that served in the step after `step`; None: there is none."""
    try:
        record = in_force(path, step)
        return None if record is None else Found.read(record)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path} cannot be read as the messages of a run: {error}; take it away, and they are "
            "found anew"
        ) from error


def keep_found(folder: Path, found: Found) -> None:
    """Writes it, beside those that served before it.

    Raises:
        CheckpointError: it cannot be written.
    """
    record = with_earlier(folder / FUSION_FILE, found.record())
    with Staging(folder) as staging:
        staging.write(FUSION_FILE, json.dumps(record, indent=1).encode())
        staging.publish()
