"""metrics.jsonl: one line of JSON for each step of a run."""

import json
import os
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Final, final

from atomo.core.safe_read import open_own, read_whole
from atomo.errors import CheckpointError
from atomo.training.folder.run_folder import Staging, Wait, explained
from atomo.training.job.events import Event, StepDone, Storage, to_json
from atomo.training.records.retrying_writer import RetryingWriter

__all__ = ["MOST", "MetricsLog"]

MOST: Final = 20_000  # waiting lines; 10 MB
TORN: Final = 2**16  # bytes; no line is longer


def ignore(record: Storage) -> None:
    """Drops a record of storage."""


@final
class MetricsLog:
    """The log of the steps of a run, in a `with` block.

    A resumed run first removes the lines of the steps that it will repeat. A line that cannot be
    written waits, together with the lines after it; an incomplete line is written again. Of more
    than `MOST` waiting lines the oldest are lost, and counted.

    Args:
        folder: of the run.
        first_step: the next step.
        outage: schedules the attempts to write.
        patience_s: the longest time that the end of the block tries to write waiting lines.
        wait: sleeps for a number of seconds.
    """

    def __init__(
        self,
        folder: Path,
        first_step: int,
        outage: RetryingWriter | None = None,
        patience_s: float = 0.0,
        wait: Wait = time.sleep,
    ) -> None:
        self.path = folder / "metrics.jsonl"
        self._outage = outage or RetryingWriter("metrics", ignore)
        self._patience_s, self._wait = patience_s, wait
        self._waiting: deque[bytes] = deque()
        self._lost = 0
        with explained(self.path, 0), Staging(folder) as staging:
            earlier_lines = [line for line in self._lines() if earlier(line, first_step)]
            # A new file replaces the old one: a reader sees one or the other, never a part.
            staging.write(self.path.name, b"".join(line + b"\n" for line in earlier_lines))
            staging.publish()
            self._file: int | None = reopened(self.path)

    def write(self, event: Event) -> None:
        """Appends a step, now or as soon as the file can be written; ignores other events."""
        if not isinstance(event, StepDone):
            return
        self._waiting.append(to_json(event).encode() + b"\n")
        if len(self._waiting) > MOST:
            self._waiting.popleft()
            self._lost += 1
        if self._outage.works or self._outage.due:
            self._outage.attempt(self._flush)

    def __enter__(self) -> "MetricsLog":
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is None:
            self._outage.insist(self._end, self._patience_s, self._wait)
            if self._lost:
                raise CheckpointError(
                    f"{self.path} lacks {self._lost} steps: more than {MOST} could not be written"
                )
            return
        with suppress(CheckpointError, OSError):  # it would hide the error that ends the run
            self._end()

    def _end(self) -> None:
        self._flush()
        with explained(self.path, 0):
            self._close()  # NFS may report a full disk only here

    def _flush(self) -> None:
        """Writes all waiting lines."""
        with explained(self.path, sum(map(len, self._waiting))):
            if not self._waiting:
                return
            try:
                if self._file is None or not os.fstat(self._file).st_nlink:  # the file was removed
                    self._close()
                    self._file = reopened(self.path)
                while self._waiting:
                    append(self._file, self._waiting[0])
                    self._waiting.popleft()
            except OSError:
                with suppress(OSError):
                    self._close()  # its mount may be gone: the next attempt opens the path again
                raise

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def _lines(self) -> list[bytes]:
        try:
            return read_whole(self.path).splitlines()
        except FileNotFoundError:
            return []


def append(file: int, line: bytes) -> None:
    """Writes a complete line. A disk that fills up accepts a part of it before it fails."""
    while line:
        line = line[os.write(file, line) :]


def reopened(path: Path) -> int:
    """Opens a log to append to, and removes an incomplete last line."""
    file = open_own(path, os.O_APPEND | os.O_CREAT)
    try:
        size = os.fstat(file).st_size
        begin = max(0, size - TORN)
        whole = begin + os.pread(file, TORN, begin).rfind(b"\n") + 1
        if whole < size:
            os.ftruncate(file, whole)
    except BaseException:
        os.close(file)
        raise
    return file


def earlier(line: bytes, first_step: int) -> bool:
    """Returns True if a line is complete and of a step before `first_step`."""
    try:
        return int(json.loads(line)["step"]) < first_step
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return False  # incomplete after a crash
