"""Records of headlines.py: lines of JSON."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["Record", "read", "records_of"]

Record = Mapping[str, Any]


def read(path: Path) -> list[Record]:
    """Returns the records of a file; none if there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def records_of(records: Sequence[Record], task: str, method: str, seed: int) -> list[Record]:
    """Returns the records of a run, in order."""
    keys = ("task", task), ("method", method), ("seed", seed)
    return [record for record in records if all(record.get(key) == value for key, value in keys)]
