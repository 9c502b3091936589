"""An account and a folder that were prepared once, and are the same again for each fault."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

from cluster.ec2.support.cloud import Cloud

__all__ = ["Saved", "saved"]

FIELDS: Final = ("acts", "placement_groups", "consoles", "attached", "starts", "console", "prices",
                 "quotas", "denied", "full", "identity")  # fmt: skip


class Saved:
    """The state of an emulator, of the proxy before it and of a folder."""

    def __init__(self, cloud: Cloud, folder: Path, copy: Path) -> None:
        self._cloud, self._folder, self._copy = cloud, folder, copy
        self._fields: dict[str, Any] = {name: deepcopy(getattr(cloud, name)) for name in FIELDS}
        shutil.copytree(folder, copy, symlinks=True)
        cloud.moto.order("save")

    def restore(self) -> None:
        """Makes all as it was."""
        self._cloud.moto.order("restore")
        self._cloud.calls.clear()
        for name, value in self._fields.items():
            setattr(self._cloud, name, deepcopy(value))
        for path in self._folder.iterdir():  # the folder itself is where commands run
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.copytree(self._copy, self._folder, symlinks=True, dirs_exist_ok=True)

    def drop(self) -> None:
        """Lets the emulator be what it was before anything was saved."""
        self._cloud.moto.order("drop")


@contextmanager
def saved(cloud: Cloud, folder: Path) -> Iterator[Saved]:
    """Saves a state as it is, for as long as this context lasts."""
    with tempfile.TemporaryDirectory() as copies:
        state = Saved(cloud, folder, Path(copies) / "state")
        try:
            yield state
        finally:
            state.drop()
