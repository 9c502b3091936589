"""Lists of objects in a JSON file; the error for an object names its id."""

import json
import sys
from array import array
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from atomo.core.safe_read import memory_bytes, read_whole
from atomo.errors import DataError
from atomo.workloads.lines import quoted

__all__ = ["AnnotationEntry", "read_lists"]

LARGEST: Final = 2**53  # of whole numbers: beyond it some JSON writers round to neighbours
DEEP: Final = "lists in lists too deep"


@final
@dataclass(frozen=True, slots=True)
class AnnotationEntry:
    """One object of a list."""

    source: Path
    kind: str
    """The word for it in errors: "annotation"."""
    place: int
    fields: Mapping[str, Any]

    def error(self, reason: str) -> DataError:
        """Returns the error for it, which names it by its id or, without one, by its
        place from 1.
        """
        number = self.fields.get("id")
        name = number if type(number) is int else f"number {self.place}"
        return DataError(f"{self.source}, {self.kind} {name}: {reason}")

    def whole(self, key: str, low: int = 0, high: int = LARGEST) -> int:
        """Returns a whole number.

        Raises:
            DataError: the value is missing, none, or out of range.
        """
        value = self.fields.get(key)
        if type(value) is not int or not low <= value <= high:
            raise self.error(f"{key} is {shown(value)}; must be a whole number, {low} to {high}")
        return value

    def size(self, key: str) -> float:
        """Returns a finite number, 0 or more.

        Raises:
            DataError: the value is something else.
        """
        value: Any = self.fields.get(key)
        if not finite(value) or value < 0:
            raise self.error(f"{key} is {shown(value)}; must be a finite number, 0 or more")
        return float(value)

    def numbers(self, key: str, count: int, expected: str) -> tuple[float, ...]:
        """Returns a list of so many finite numbers.

        Raises:
            DataError: the value is something else; the message names the `expected` value.
        """
        value = self.fields.get(key)
        if not isinstance(value, list) or len(value) != count or not all(map(finite, value)):
            raise self.error(f"{key} is {shown(value)}; must be {expected}")
        return tuple(map(float, value))

    def text(self, key: str) -> str:
        """Returns a text that is not empty.

        Raises:
            DataError: the value is something else.
        """
        value = self.fields.get(key)
        if not isinstance(value, str) or not value:
            raise self.error(f"{key} is {shown(value)}; must be a text that is not empty")
        return value


def read_lists(path: Path, kinds: Mapping[str, str]) -> list[list[AnnotationEntry]]:
    """Returns the lists that a file of JSON has under some names.

    Args:
        path: of the file.
        kinds: names of lists, and the word for an object of each.

    Raises:
        DataError: the file cannot be read, is no JSON, or has not these lists of objects.
    """
    top = read_json(path)
    return [entries(path, top, name, kind) for name, kind in kinds.items()]


def entries(path: Path, top: object, name: str, kind: str) -> list[AnnotationEntry]:
    listing = top.get(name) if isinstance(top, dict) else None
    if not isinstance(listing, list):
        raise DataError(f"{path} has no list {name!r}; COCO's files of instances have one")
    for place, fields in enumerate(listing, 1):
        if not isinstance(fields, dict):
            raise DataError(f"{path}, {kind} number {place}: {shown(fields)} is no object of JSON")
    return [AnnotationEntry(path, kind, place, fields) for place, fields in enumerate(listing, 1)]


def read_json(path: Path) -> object:
    """Reads a file of JSON."""
    try:
        return json.loads(read_whole(path, memory_bytes(), linked=True), object_hook=compact)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError, MemoryError) as error:  # of its syntax, or of UTF-8
        reason = error if isinstance(error, ValueError) else DEEP
        raise DataError(f"{path} is no JSON: {reason}") from error


def compact(fields: dict[str, Any]) -> dict[str, Any]:
    """Returns the same object with the corners of its polygons in a quarter of the memory."""
    outline = fields.get("segmentation")
    if isinstance(outline, list):
        with suppress(TypeError, OverflowError):  # a later check of the object reports it
            fields["segmentation"] = [array("d", polygon) for polygon in outline]
    return fields


def finite(value: Any) -> bool:
    return type(value) in (int, float) and -sys.float_info.max <= value <= sys.float_info.max


def shown(value: object) -> str:
    """Returns a value as an error shows it."""
    return "missing" if value is None else quoted(value) if isinstance(value, str) else cut(value)


def cut(value: object) -> str:
    return quoted(repr(value))[1:-1]
