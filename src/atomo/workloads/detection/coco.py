"""pycocotools, which is an extra: how the field reads outlines, and counts average precision."""

from importlib import import_module
from typing import Any

from atomo.core.distribution import install_command
from atomo.errors import MissingPackage

__all__ = ["pycocotools"]


def pycocotools(module: str) -> Any:
    """Returns one of its modules: `mask`, `coco` or `cocoeval`.

    Raises:
        MissingPackage: the package is not installed.
    """
    try:
        return import_module(f"pycocotools.{module}")
    except ImportError as error:
        raise MissingPackage(
            f"--task detection needs the package pycocotools ({error}); "
            f"`{install_command('detection')}` brings it"
        ) from error
