"""Columns of metrics.jsonl: the steps of a run as arrays, read from a file that anyone may write.

A line that is no step is left out and counted; a number that is missing or wrong is NaN. The file
is read in pieces, so that the memory of a read grows with the columns alone.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any, BinaryIO, Final, final

import numpy as np
from jaxtyping import Bool, Float64
from msgspec import MsgspecError, defstruct
from msgspec.json import Decoder

from atomo.core.safe_read import open_plain
from atomo.training.folder.run_folder import decoded

__all__ = [
    "NAMES",
    "Column",
    "StepColumns",
    "masked",
    "number",
    "read_columns",
    "read_records",
    "zeroed",
]

Column = Float64[np.ndarray, " steps"]
NAMES: Final = (
    "step", "loss", "accuracy", "lr", "damping", "workers", "up_bytes", "down_bytes",
    "dense_bytes", "step_s", "compute_s", "encode_s", "send_s", "wait_s", "follow_s", "decode_s",
    "update_s", "exchange_s", "hidden_s", "slowest", "slowness", "round", "round_steps",
    "outer_rate", "correlation", "asked", "late", "lost", "refused", "under_way", "images_asked",
    "images_used", "images_late", "images_lost", "images_refused", "images_under_way",
    "storage_failures",
)  # fmt: skip
FIELDS: Final = (*NAMES, "refused_from", "refused_for")
LARGEST: Final = 1e39  # no float32 is so large, and sums of such numbers are finite
PIECE: Final = 2000  # lines that are parsed together: a call for each line costs half as much again
LONGEST: Final = 2**20  # bytes of a line
MOST_LINES: Final = 2_000_000

# A line has some fifty values. Those that no column has are skipped and never made into objects,
# which reads five times as fast as the json module; any kind of value is accepted.
Line: Any = defstruct("Line", [(name, Any, None) for name in FIELDS], gc=False)
DECODER: Final = Decoder(list[Line])


@final
@dataclass(frozen=True)
class StepColumns:
    """The steps of a run: a column for each of `NAMES`, NaN where a line has no such number."""

    columns: Mapping[str, Column]
    skipped: int = 0
    """Lines that are no step."""
    refusals: Mapping[tuple[int, str], int] = field(default_factory=dict)
    """Refused frames by rank and fault."""

    @classmethod
    def none(cls) -> "StepColumns":
        """Returns the columns of a run without steps."""
        return cls({name: np.zeros(0) for name in NAMES})

    def __len__(self) -> int:
        return len(self.columns["step"])

    def __getitem__(self, name: str) -> Column:
        return self.columns[name]

    def after(self, steps: int) -> "StepColumns":
        """Returns the steps after the first ones; all of them if there are few."""
        if len(self) <= 2 * steps:
            return self
        return StepColumns({name: values[steps:] for name, values in self.columns.items()})

    def total(self, name: str) -> float:
        """Returns the sum of a column, without entries that are no numbers."""
        return float(self.filled(name).sum())

    def mean(self, name: str) -> float:
        """Returns the mean of a column, without entries that are no numbers; 0 if all are none."""
        values = self[name][np.isfinite(self[name])]
        return float(values.mean()) if len(values) else 0.0

    def running(self, name: str) -> Column:
        """Returns the sums of a column from the first step to each step."""
        return np.cumsum(self.filled(name))

    def filled(self, name: str) -> Column:
        """Returns a column with 0 for entries that are no numbers."""
        return zeroed(self[name])


def masked(values: Column, keep: Bool[np.ndarray, " steps"]) -> Column:
    """Returns the values to keep, and NaN in the places of others."""
    result: Column = np.full(len(values), np.nan)
    result[keep] = values[keep]
    return result


def zeroed(values: Column) -> Column:
    """Returns the finite values, and 0 in the places of others."""
    result: Column = np.zeros(len(values))
    keep = np.isfinite(values)
    result[keep] = values[keep]
    return result


def read_columns(path: Path) -> StepColumns:
    """Reads the steps of a run; without a file there are none.

    Raises:
        OSError: the file exists, and cannot be read.
    """
    pieces: list[Mapping[str, Column]] = []
    refusals: Counter[tuple[int, str]] = Counter()
    skipped = 0
    for lines in line_pieces(path):
        parsed = parsed_lines(lines)
        steps = [line for line in parsed if type(line.step) is int]
        skipped += len(lines) - len(steps)
        pieces.append({name: column(steps, name) for name in NAMES})
        count_refusals(steps, refusals)
    if not pieces:
        return StepColumns.none()
    joined = {name: np.concatenate([piece[name] for piece in pieces]) for name in NAMES}
    return StepColumns(joined, skipped, refusals)


def read_records(path: Path) -> tuple[list[Mapping[str, Any]], int]:
    """Returns the JSON objects of a file, one a line, and the number of other lines.

    Raises:
        OSError: the file exists, and cannot be read.
    """
    lines = [line for piece in line_pieces(path) for line in piece]
    records = [record for record in map(decoded, lines) if isinstance(record, Mapping)]
    return records, len(lines) - len(records)


def line_pieces(path: Path) -> Iterator[list[bytes]]:
    """Yields the lines of a file, some at a time; none without a file."""
    try:
        with open_plain(path) as file:
            lines = islice(bounded_lines(file), MOST_LINES)
            while piece := list(islice(lines, PIECE)):
                yield piece
    except FileNotFoundError:
        return


def bounded_lines(file: BinaryIO) -> Iterator[bytes]:
    """Yields the lines of a file; a line beyond `LONGEST` comes in parts, which are no JSON."""
    while line := file.readline(LONGEST):
        if not line.isspace():
            yield line.rstrip(b"\n")


def parsed_lines(lines: Sequence[bytes]) -> list[Line]:
    """Returns the known values of each line; none of a line that is no JSON object."""
    with suppress(MsgspecError, RecursionError):
        values = DECODER.decode(b"[" + b",".join(lines) + b"]")
        if len(values) == len(lines):  # a line `{}, {}` is no JSON, and is two values here
            return values
    # One of the lines is no object, or has a number that JSON lacks, such as NaN.
    records = (decoded(line) for line in lines)
    return [line_of(record) if isinstance(record, Mapping) else Line() for record in records]


def line_of(record: Mapping[str, Any]) -> Line:
    """Returns the known values of a record."""
    return Line(**{name: record[name] for name in FIELDS if name in record})


def column(steps: Sequence[Line], name: str) -> Column:
    """Returns the numbers of a name."""
    values = [*map(attrgetter(name), steps)]
    if values.count(None) == len(values):  # most runs lack some of the names
        return np.full(len(values), np.nan)
    numbers = numbers_of(values)
    return masked(numbers, np.abs(numbers) < LARGEST)


def numbers_of(values: Sequence[object]) -> Column:
    """Returns values as an array: quickly if all are numbers or None."""
    with suppress(ValueError, OverflowError):  # lists of several lengths
        array = np.array(values)
        if array.dtype.kind in "fi":
            return array.astype(np.float64)
    return np.array([number(value) for value in values], dtype=np.float64)


def number(value: object) -> float:
    """Returns a number; NaN for anything else."""
    try:
        return float(value) if type(value) in (int, float) else np.nan  # type: ignore[arg-type]
    except OverflowError:
        return np.nan


def count_refusals(steps: Sequence[Line], refusals: Counter[tuple[int, str]]) -> None:
    """Counts the refused frames of some steps by rank and fault."""
    for line in steps:
        match line.refused_from, line.refused_for:
            case [_, *_] as ranks, [_, *_] as faults:
                pairs = zip(ranks, faults, strict=False)
                refusals.update((rank, str(fault)) for rank, fault in pairs if type(rank) is int)
