"""Records, one line of JSON each, in a file that only grows.

A killed process leaves complete lines and at most one incomplete line, which its successor removes.
"""

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from atomo.core.safe_read import open_own, read_whole
from atomo.errors import CheckpointError
from atomo.training.folder.run_folder import PATIENCE_S, Wait, decoded, explained, present, sync

__all__ = ["append_line", "lines"]


def append_line(path: Path, record: Mapping[str, object]) -> None:
    """Appends one line of JSON to `path`, and syncs the file.

    Raises:
        CheckpointError: the line cannot be written.
    """
    line = json.dumps(record, allow_nan=False).encode() + b"\n"
    with explained(path, len(line)), own(path, os.O_APPEND | os.O_CREAT) as file:
        file.write(line)
        sync(file)


def own(path: Path, flags: int = 0) -> BinaryIO:
    """Opens the file for writing."""
    return os.fdopen(open_own(path, flags), "wb")


def lines(path: Path, patience_s: float = PATIENCE_S, wait: Wait = time.sleep) -> list[Any]:
    """Returns the JSON lines of `path`, and removes an incomplete last line.

    Returns an empty list if the file does not exist.

    Raises:
        CheckpointError: the file cannot be read, or a complete line is not JSON.
    """
    text = present(path, read_whole, patience_s, wait) or b""
    whole = text.rfind(b"\n") + 1
    if whole < len(text):
        with explained(path, 0), own(path) as file:
            file.truncate(whole)
    records = [decoded(line) for line in text[:whole].splitlines()]
    if None in records:
        raise CheckpointError(f"{path}, line {records.index(None) + 1}: not JSON; remove that line")
    return records
