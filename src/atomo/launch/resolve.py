"""Settings of a job as every rank needs them: canonical names, absolute folders."""

import sys
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from itertools import chain, count
from pathlib import Path

from atomo.config.settings import Settings
from atomo.errors import CheckpointError
from atomo.training.checkpoints.index import readable, recorded
from atomo.training.folder.ownership import EVALUATOR, RUN, Ownership, own
from atomo.training.folder.run_folder import explained
from atomo.workloads import dataset_named, make_task, spec_of

__all__ = ["canonical_settings", "claim_folder", "inherit_memory", "resolve_settings"]


def canonical_settings(settings: Settings) -> Settings:
    """Returns the settings with every name in its canonical spelling.

    Raises:
        ConfigError: a name is unknown; the message suggests the nearest.
    """
    task = make_task(settings.task)
    return replace(
        settings,
        task=spec_of(task),
        network=task.network_named(settings.network),
        dataset=dataset_named(task, settings.dataset),
    ).resolved()


def inherit_memory(settings: Settings) -> Settings:
    """Returns the settings with the memory of the checkpoint that a run continues from, if
    `--memory` is auto.

    The same command can then continue a run for which an earlier version chose another memory.
    """
    folder = settings.resume_folder
    if settings.memory != "auto" or settings.resume == "never" or not folder:
        return settings
    try:
        step = readable(Path(folder))
        record = {} if step is None else recorded(Path(folder), step)
    except CheckpointError:
        return settings  # the master reports the error
    resolved = settings.resolved()
    if (record.get("code"), record.get("code_schedule")) != (resolved.code, resolved.code_schedule):
        return settings
    return replace(settings, memory=str(record.get("memory", "auto")))


def resolve_settings(settings: Settings, name: str = "") -> Settings:
    """Returns the settings with canonical names and absolute folders, since ranks may start
    elsewhere.

    A run without `--train-dir` gets a new path that begins with `name`. No folder is made here.
    """
    settings = canonical_settings(inherit_memory(settings))
    folder = Path(settings.train_dir or new_run_folder(settings, name)).absolute()
    resume = settings.resume
    if settings.resumes_elsewhere:
        resume = str(Path(resume).absolute())
    return replace(
        settings,
        train_dir=str(folder),
        data_dir=str(Path(settings.data_dir).absolute()),
        weights=str(Path(settings.weights).absolute()) if settings.weights else "",
        resume=resume,
    )


def claim_folder(settings: Settings, is_named: bool) -> Settings:
    """Returns the settings with a folder that this run may use: a new one, or the named one if no
    other run uses it.

    Args:
        settings: settings that `resolve_settings` has returned.
        is_named: True if the user named the folder; False: a new folder is made, which no run that
            starts at the same time shares.

    Raises:
        FolderTaken: another run uses the folder. A run that takes the folder after this check is
            reported by the first rank.
        CheckpointError: the folder cannot be made, or the earlier run in it cannot be renamed.
    """
    folder = Path(settings.train_dir)
    if not is_named:
        return replace(settings, train_dir=str(make_numbered_folder(folder)))
    if folder.is_dir():
        with own(folder, RUN) as owner:
            if settings.resume == "never":
                set_aside(folder, owner)
    return settings


def new_run_folder(settings: Settings, name: str = "") -> Path:
    """Returns the path of a new folder, for a run without `--train-dir`."""
    codec = settings.code.partition("(")[0]
    now = datetime.now().strftime("%Y%m%d-%H%M%S")
    network = settings.network.replace(":", "-")  # of a network of another package
    label = name or f"{network}-{settings.dataset}-{codec}".lower()
    return Path("runs") / f"{label}-{now}"


def make_numbered_folder(folder: Path) -> Path:
    """Makes a new folder of that name, or of that name and a number."""
    with explained(folder, 0):
        folder.parent.mkdir(parents=True, exist_ok=True)
        numbered = (folder.with_name(f"{folder.name}-{number}") for number in count(2))
        for candidate in chain([folder], numbered):
            with suppress(FileExistsError):
                candidate.mkdir()
                return candidate
    raise AssertionError("numbers do not run out")


def set_aside(folder: Path, owner: Ownership) -> None:
    """Renames the folder of an earlier run, so that a new run does not overwrite it.

    Raises:
        FolderTaken: an evaluator still writes in it.
    """
    with own(folder, EVALUATOR) as log, explained(folder, 0):
        number = 1
        while (aside := folder.with_name(f"{folder.name}.{number}")).exists():
            number += 1
        folder.rename(aside)
        for ownership in (owner, log):
            ownership.follow(aside)
    sys.stderr.write(f"atomo: the earlier run in {folder} is now in {aside}\n")
