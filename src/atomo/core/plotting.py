"""Pictures: matplotlib where it is installed, asked for before any work is done."""

from pathlib import Path
from types import ModuleType

from atomo.core.distribution import install_command
from atomo.errors import ConfigError, MissingPackage

__all__ = ["pyplot_for"]


def pyplot_for(picture: str) -> ModuleType:
    """Returns Matplotlib's `pyplot`, without a screen, once it is sure that it can write this file.

    Raises:
        MissingPackage: matplotlib is not installed.
        ConfigError: the folder is missing, or it writes no such files.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise MissingPackage(
            f"--png needs matplotlib; `{install_command('plot')}` brings it"
        ) from error
    matplotlib.use("agg")
    from matplotlib import pyplot
    from matplotlib.backend_bases import FigureCanvasBase

    path = Path(picture)
    if not path.parent.is_dir():
        raise ConfigError(f"--png {picture}: there is no folder {path.parent}")
    suffixes = FigureCanvasBase.get_supported_filetypes()
    if path.suffix[1:].lower() not in suffixes:
        raise ConfigError(f"--png {picture}: ends in none of .{', .'.join(sorted(suffixes))}")
    return pyplot
