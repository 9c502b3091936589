"""The settings of a job as every rank must have them: names as we spell them, folders absolute."""

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
        ConfigError: nothing has this name; the message offers the nearest.
    """
    task = make_task(settings.task)
    return replace(
        settings,
        task=spec_of(task),
        network=task.network_named(settings.network),
        dataset=dataset_named(task, settings.dataset),
    ).resolved()


def inherit_memory(settings: Settings) -> Settings:
    """Returns the settings with the memory of the checkpoint that they continue, if `--memory` is
    auto.

    The same command then continues a run whose memory an earlier version chose otherwise.
    """
    folder = settings.resume_folder
    if settings.memory != "auto" or settings.resume == "never" or not folder:
        return settings
    try:
        step = readable(Path(folder))
        kept = {} if step is None else recorded(Path(folder), step)
    except CheckpointError:
        return settings  # the master says so, in its place
    mine = settings.resolved()
    if (kept.get("code"), kept.get("code_schedule")) != (mine.code, mine.code_schedule):
        return settings
    return replace(settings, memory=str(kept.get("memory", "auto")))


def resolve_settings(settings: Settings, name: str = "") -> Settings:
    """Returns the settings with canonical names and absolute folders, since ranks may start
    elsewhere.

    A run that was given no folder gets the path of one that is not there yet, which begins with
    `name`; nothing is made.
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


def claim_folder(settings: Settings, given: bool) -> Settings:
    """Returns the same with a folder that this run may have: a new one, or one that nobody else
    uses.

    Args:
        settings: as `resolve_settings` returns them.
        given: whether the user named the folder; else it is made, and is another one than that of
            any run that starts at the same time.

    Raises:
        FolderTaken: another run uses it. Between now and the first rank one may still take it;
            that rank then says so.
        CheckpointError: it cannot be made, or what is in it cannot be set aside.
    """
    folder = Path(settings.train_dir)
    if not given:
        return replace(settings, train_dir=str(make_numbered_folder(folder)))
    if folder.is_dir():
        with own(folder, RUN) as owner:
            if settings.resume == "never":
                set_aside(folder, owner)
    return settings


def new_run_folder(settings: Settings, name: str = "") -> Path:
    """Returns a new folder for a run that was given none."""
    codec = settings.code.partition("(")[0]
    now = datetime.now().strftime("%Y%m%d-%H%M%S")
    network = settings.network.replace(":", "-")  # of a network of another package
    what = name or f"{network}-{settings.dataset}-{codec}".lower()
    return Path("runs") / f"{what}-{now}"


def make_numbered_folder(folder: Path) -> Path:
    """Returns a new folder of that name, or of that name and a number."""
    with explained(folder, 0):
        folder.parent.mkdir(parents=True, exist_ok=True)
        others = (folder.with_name(f"{folder.name}-{number}") for number in count(2))
        for candidate in chain([folder], others):
            with suppress(FileExistsError):
                candidate.mkdir()
                return candidate
    raise AssertionError("numbers do not run out")


def set_aside(folder: Path, owner: Ownership) -> None:
    """Renames the folder of an earlier run, so that starting anew loses nothing.

    Raises:
        FolderTaken: an evaluator still writes in it.
    """
    with own(folder, EVALUATOR) as log, explained(folder, 0):
        number = 1
        while (aside := folder.with_name(f"{folder.name}.{number}")).exists():
            number += 1
        folder.rename(aside)
        for one in (owner, log):
            one.follow(aside)
    sys.stderr.write(f"atomo: the earlier run in {folder} is now in {aside}\n")
