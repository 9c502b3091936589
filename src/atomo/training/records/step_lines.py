"""Steps of a run in metrics.jsonl, read and checked: the file may be untrusted."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from atomo.errors import CheckpointError
from atomo.training.records.json_lines import lines

__all__ = ["LAST_STEP", "number_in", "step_lines", "whole_in"]

MOST: Final = 1e39  # no float32 is so large
LAST_STEP: Final = 2**63 - 1


def step_lines(
    folder: Path, names: Iterable[str], optional: Iterable[str] = ()
) -> list[Mapping[str, Any]]:
    """Returns the steps of a run; an empty list without a file.

    Args:
        folder: of the run.
        names: numbers that each step has in addition to `step`.
        optional: numbers that a step may lack.

    Raises:
        CheckpointError: the file cannot be read, or a line is no step with these numbers.
    """
    path, steps = folder / "metrics.jsonl", list[Mapping[str, Any]]()
    for place, record in enumerate(lines(path), 1):
        try:
            steps.append(checked_step(record, names, optional))
        except ValueError as error:
            raise CheckpointError(f"{path}, line {place}: no step ({error}); remove it") from error
    return steps


def checked_step(
    record: object, names: Iterable[str], optional: Iterable[str]
) -> Mapping[str, Any]:
    """Returns a record after a check that it is a step. Raises ValueError for any other."""
    if not isinstance(record, Mapping):
        raise ValueError("not a JSON object")
    whole_in(record, "step", LAST_STEP)
    for name in (*names, *(name for name in optional if name in record)):
        number_in(record, name)
    return record


def number_in(record: Mapping[str, Any], name: str) -> float:
    """Returns a number of a record. Raises ValueError if it is missing, or is not finite."""
    value: Any = record.get(name)
    if type(value) not in (int, float) or not abs(value) < MOST:
        raise ValueError(f"{name} is {shown(value)}, not a number within {MOST:g}")
    return float(value)


def whole_in(record: Mapping[str, Any], name: str, maximum: int) -> int:
    """Returns a whole number from 0 of a record. Raises ValueError if it is not one."""
    value: Any = record.get(name)
    if type(value) is not int or not 0 <= value <= maximum:
        raise ValueError(f"{name} is {shown(value)}, not a whole number from 0 to {maximum}")
    return value


def shown(value: object) -> str:
    """Formats a value in few characters: Python refuses to format a number of 5000 digits."""
    return "a large number" if type(value) is int and abs(value) > LAST_STEP else f"{value!r:.60}"
