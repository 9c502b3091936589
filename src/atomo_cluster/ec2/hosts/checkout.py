"""The checkout as an archive: hosts run the local files, uncommitted changes included."""

import io
import subprocess
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from atomo_cluster.errors import ConfigError

__all__ = ["checkout", "pack_checkout", "pack_files"]

MARK: Final = "tools/remote_script.sh"
# As .gitignore has it: these beside the scripts, where packages may have the same names,
LEFT_OUT: Final = {".venv", ".git", "runs", "clusters", "cluster.yaml", "data", "dist"}
# and these wherever they are.
CACHES: Final = {"__pycache__", ".pytest_cache", ".hypothesis", ".mypy_cache", ".ruff_cache"}
LARGEST: Final = 200 * 2**20
GIT_S: Final = 120.0  # for the list of files, also on a slow network folder


def checkout(path: Path | None) -> Path:
    """Returns the folder of the checkout: the given one, or the one that has this package.

    Raises:
        ConfigError: the folder is not a checkout.
    """
    root = path or Path(__file__).parents[4]
    if not (root / MARK).exists():
        raise ConfigError(
            f"{root} is not a checkout of Atomo: it has no {MARK}. The hosts run a copy of one; "
            "clone it, or name it with --source"
        )
    return root


def pack_checkout(root: Path) -> bytes:
    """Packs the files that git does not ignore, as tar.gz.

    Raises:
        ConfigError: the files are too large for a checkout.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name in checkout_files(root):
            if (root / name).is_file():
                tar.add(root / name, arcname=name, recursive=False)
            if buffer.tell() > LARGEST:
                raise ConfigError(
                    f"{root} has more than {LARGEST >> 20} MB of files that git does not ignore; "
                    "move them away"
                )
    return buffer.getvalue()


def pack_files(files: Mapping[str, str]) -> bytes:
    """Packs small files by name, as tar."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode, entry.mtime = len(text.encode()), 0o600, time.time()
            tar.addfile(entry, io.BytesIO(text.encode()))
    return buffer.getvalue()


def checkout_files(root: Path) -> list[str]:
    """Lists the files of a checkout; without git, all except the results of runs."""
    words = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(words, capture_output=True, check=True, timeout=GIT_S)
        return [name for name in done.stdout.decode().split("\0") if name]
    except subprocess.TimeoutExpired as error:
        raise ConfigError(f"{root}: git did not list its files within {GIT_S:g} s") from error
    except (OSError, subprocess.CalledProcessError):
        paths = (path.relative_to(root) for path in sorted(root.rglob("*")))
        return [str(path) for path in paths if not left_out(path)]


def left_out(path: Path) -> bool:
    """True if a path of the checkout is a result of a run, a cluster or a tool."""
    return path.parts[0] in LEFT_OUT or not CACHES.isdisjoint(path.parts)
