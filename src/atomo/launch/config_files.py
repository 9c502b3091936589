"""Configuration files by name: `configs/...` is found from every folder, and once installed."""

from importlib.resources import files
from pathlib import Path
from typing import Final

from atomo.core.names import nearest
from atomo.errors import ConfigError

__all__ = ["config_file", "published_configs"]

FOLDER: Final = "configs"


def config_file(path: Path) -> Path:
    """Returns the file that `--config` names: as it is given, or else the published one of this
    name.

    Raises:
        ConfigError: no file is there, and no published one has this name.
    """
    if path.exists() or path.parts[:1] != (FOLDER,):
        return path  # the reader of the file reports errors
    if (published := root() / path).is_file():
        return published
    raise ConfigError(
        f"--config {path}: there is no such file; {nearest(str(path), published_configs())}"
    )


def published_configs() -> list[str]:
    """Returns the names of the published files, such as configs/cifar/resnet20.toml."""
    return sorted(str(path.relative_to(root())) for path in (root() / FOLDER).rglob("*.toml"))


def root() -> Path:
    """Returns the folder that has `configs/`: the installed package, or the checkout around it."""
    package = Path(str(files("atomo")))
    return package if (package / FOLDER).is_dir() else package.parents[1]
