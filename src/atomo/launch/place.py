"""The settings of a job as every rank must have them: names as we spell them, folders absolute."""

import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from atomo.config import Settings
from atomo.data import DATASETS
from atomo.models import MODELS
from atomo.names import resolve

__all__ = ["canonical", "located"]


def canonical(settings: Settings) -> Settings:
    """The settings with every name in its canonical spelling.

    Raises:
        ConfigError: nothing has this name; the message offers the nearest.
    """
    return replace(
        settings,
        network=resolve("network", settings.network, MODELS),
        dataset=resolve("data set", settings.dataset, DATASETS),
    ).resolved()


def located(settings: Settings) -> Settings:
    """The settings with canonical names and absolute folders, since ranks may start elsewhere."""
    settings = canonical(settings)
    folder = Path(settings.train_dir or fresh_folder(settings)).absolute()
    if settings.resume == "never" and folder.exists():
        set_aside(folder)
    elsewhere = settings.resume not in ("auto", "never")
    return replace(
        settings,
        train_dir=str(folder),
        data_dir=str(Path(settings.data_dir).absolute()),
        resume=str(Path(settings.resume).absolute()) if elsewhere else settings.resume,
    )


def fresh_folder(settings: Settings) -> Path:
    """Where a run goes that was given no folder."""
    codec = settings.code.partition("(")[0]
    now = datetime.now().strftime("%Y%m%d-%H%M%S")
    return Path("runs") / f"{settings.network}-{settings.dataset}-{codec}-{now}".lower()


def set_aside(folder: Path) -> None:
    """Renames the folder of an earlier run, so that starting anew loses nothing."""
    number = 1
    while (aside := folder.with_name(f"{folder.name}.{number}")).exists():
        number += 1
    folder.rename(aside)
    sys.stderr.write(f"atomo: the earlier run in {folder} is now in {aside}\n")
