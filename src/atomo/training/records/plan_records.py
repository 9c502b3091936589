"""The plans of a run in its folder: auto.json for codecs, fusion.json for messages.

    {..., "since": 151, "earlier": [{..., "since": 1}]}

A plan is measured at the start of a run, and possibly again later. A file has the current plan and
the plans before it, so that a run that continues from a checkpoint has the plan of that step.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import xxhash

from atomo.config.comm_types import stored_settings
from atomo.config.settings import Settings
from atomo.core.safe_read import read_whole
from atomo.errors import CheckpointError
from atomo.fusion import shapes
from atomo.training.checkpoints.data_files import last_whole
from atomo.training.folder.run_folder import Staging, decoded
from atomo.training.job.job import Job
from atomo.training.job.plan import CODECS_FILE, MESSAGES_FILE, CodecPlan, MessagePlan, Plan

__all__ = [
    "continued",
    "job_hash",
    "keep_plan",
    "kept_codecs",
    "kept_messages",
    "moved",
    "read_codecs",
    "short_hash",
]

SINCE: Final = "since"  # the first step by a plan
EARLIER: Final = "earlier"  # plans, the latest first
# Settings that the costs of messages depend on.
HASHED: Final = (
    "code", "code_for", "code_schedule", "memory", "comm_type", "n", "batch_size",
    "batches_per_step", "network", "dataset", "precision", "enable_gpu", "dense_below",
)  # fmt: skip

Warn = Callable[[str], object]
"""Receives the reason why a plan in the folder is not valid."""


def continued(settings: Settings) -> tuple[Path, int] | None:
    """Returns the folder that a run continues from, and the step of its last undamaged checkpoint
    (0 without one); None for a new run.

    Raises:
        CheckpointError: the folder cannot be listed.
    """
    if settings.resume == "never":
        return None
    folder = Path(settings.resume_folder)
    return folder, (last_whole(folder) or 0 if folder.is_dir() else 0)


def keep_plan(folder: Path, plan: Plan) -> None:
    """Writes a plan into the folder of the run, beside the plans before it.

    Raises:
        CheckpointError: a file cannot be written.
    """
    if plan.codecs:
        record = asdict(plan.codecs)
        record["said"] = stored_settings(record["said"])
        publish(folder, CODECS_FILE, record, end=b"\n")
    if plan.messages:
        publish(folder, MESSAGES_FILE, asdict(plan.messages))


def publish(folder: Path, name: str, record: Mapping[str, Any], end: bytes = b"") -> None:
    """Writes one file."""
    record = with_earlier(folder / name, record)
    with Staging(folder) as staging:
        staging.write(name, json.dumps(record, indent=1).encode() + end)
        staging.publish()


def kept_codecs(
    settings: Settings, hosts: tuple[str, ...] = (), warn: Warn = lambda why: None
) -> CodecPlan | None:
    """Returns the codecs in the folder that a run continues from, if they fit these settings.

    Args:
        settings: with `--code auto`.
        hosts: of the job, by rank.
        warn: receives the reason if a plan does not fit.

    Raises:
        CheckpointError: the file is not as `keep_plan` writes it.
    """
    if (place := continued(settings)) is None:
        return None
    path = place[0] / CODECS_FILE
    codecs = read_codecs(path, place[1])
    if codecs is None or not (why := codecs.mismatch(settings) or moved(codecs.hosts, hosts)):
        return codecs
    warn(f"{path} does not serve this job: {why}; codecs are measured and chosen anew")
    return None


def kept_messages(
    settings: Settings, job: str, hosts: tuple[str, ...] = (), warn: Warn = lambda why: None
) -> MessagePlan | None:
    """Returns the messages in the folder that a run continues from, if they fit this job.

    Args:
        settings: with a `--fusion` that is searched.
        job: hash of the job.
        hosts: of the job, by rank.
        warn: receives the reason if a plan does not fit.

    Raises:
        CheckpointError: the file exists, but cannot be read.
    """
    if (place := continued(settings)) is None:
        return None
    path = place[0] / MESSAGES_FILE
    messages = read_messages(path, place[1])
    if messages is None:
        return None
    same = messages.job == (short_hash(job, settings) if messages.why else job)
    difference = "" if same else "it is of other codecs, another network or other settings"
    if not (why := difference or moved(messages.hosts, hosts)):
        return messages
    warn(f"{path} does not serve this job: {why}; messages are measured and found anew")
    return None


def read_codecs(path: Path, step: int) -> CodecPlan | None:
    """Returns the codecs of the step after `step`; None if there are none."""
    try:
        record = in_force(path, step)
        return None if record is None else CodecPlan.read(record)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path} is no record of --code auto ({error}); remove it to have codecs chosen anew"
        ) from error


def read_messages(path: Path, step: int) -> MessagePlan | None:
    """Returns the messages of the step after `step`; None if there are none."""
    try:
        record = in_force(path, step)
        return None if record is None else MessagePlan.read(record)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path} cannot be read as the messages of a run: {error}; remove it to have messages "
            "found anew"
        ) from error


def job_hash(job: Job, search: str) -> str:
    """Hashes all that a partition depends on, except the hosts: the search, the settings of
    computation and exchange, and the parameters.
    """
    settings = stored_settings(asdict(job.settings))
    words = [search, *(f"{name}={settings[name]}" for name in HASHED)]
    words += [f"{name}{tuple(shape)}" for name, shape in shapes(job.model)]
    return xxhash.xxh3_64_hexdigest("\n".join(words).encode())


def short_hash(job: str, settings: Settings) -> str:
    """Hashes a job too short to measure, with its length: a longer job is measured."""
    length = settings.epochs, settings.max_steps, settings.auto_share
    return xxhash.xxh3_64_hexdigest(f"{job} {length}".encode())


def in_force(path: Path, step: int) -> dict[str, Any] | None:
    """Returns the record of the step after `step`; None if all records are of later steps.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is no record.
    """
    for record in records(decoded(read_whole(path))):
        if since(record) <= step + 1:
            return {name: value for name, value in record.items() if name != EARLIER}
    return None


def with_earlier(path: Path, record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a record together with the earlier records of a file, if the file can be read."""
    try:
        before = [old for old in records(decoded(read_whole(path))) if since(old) < since(record)]
    except (OSError, ValueError):
        before = []
    plain = [{name: value for name, value in old.items() if name != EARLIER} for old in before]
    return {**record, **({EARLIER: plain} if plain else {})}


def moved(measured_hosts: tuple[str, ...], hosts: tuple[str, ...]) -> str:
    """Returns a sentence if a plan was measured on other hosts than the job's; empty if not, or if
    either is unknown. Except for rank 0, the order of ranks makes no difference.
    """
    if (
        not measured_hosts
        or not hosts
        or (measured_hosts[0], Counter(measured_hosts)) == (hosts[0], Counter(hosts))
    ):
        return ""
    before, now = hosts_text(measured_hosts), hosts_text(hosts)
    return f"it was measured on {before}, and the ranks are on {now} now"


def hosts_text(hosts: tuple[str, ...]) -> str:
    """Returns each host with its number of ranks."""
    return ", ".join(f"{name} ({ranks})" for name, ranks in Counter(hosts).items())


def records(values: object) -> list[Mapping[str, Any]]:
    """Returns the records of a file, the latest first. Raises ValueError."""
    if not isinstance(values, Mapping) or not isinstance(values.get(EARLIER, []), list):
        raise ValueError("it is no record of a plan")
    plans = [values, *values.get(EARLIER, [])]
    if not all(isinstance(record, Mapping) for record in plans):
        raise ValueError("an earlier plan is no record")
    return plans


def since(record: Mapping[str, Any]) -> int:
    """Returns the first step by a record's plan. Raises ValueError.

    Files of earlier versions have one plan, from the first step on.
    """
    step = record.get(SINCE, 1)
    if type(step) is not int or step < 1:
        raise ValueError(f"{SINCE} is {step!r}: the number of a step is from 1")
    return step
