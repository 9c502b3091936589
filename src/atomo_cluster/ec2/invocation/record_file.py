"""Files of records that this machine keeps about a cluster, replaced as a whole."""

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from atomo_cluster.errors import ConfigError
from atomo_cluster.plain_files import replace_plain

__all__ = ["read_records", "write_records"]

R = TypeVar("R")


def read_records(path: Path, kind: Callable[..., R], lost: str) -> list[R]:
    """Reads the records of a file; none if there is no file.

    Args:
        path: the file.
        kind: the class of the records, a dataclass of plain values.
        lost: what is lost without the file, for the error.

    Raises:
        ConfigError: the file is damaged.
    """
    try:
        return [kind(**record) for record in json.loads(path.read_text())]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{path}: {error}; delete it; {lost}") from error


def write_records(path: Path, records: Iterable[Any], lost: str) -> None:
    """Replaces a file of records, which are dataclasses, atomically.

    Raises:
        ConfigError: the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        replace_plain(path, json.dumps([asdict(record) for record in records], indent=1) + "\n")
    except OSError as error:
        raise ConfigError(f"{path}: {error}; {lost}") from error
