"""metrics.jsonl: one line of JSON for each step of a run."""

import json
import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import final

from atomo.training.events import Event, StepDone, to_json
from atomo.training.plain_file import read_whole
from atomo.training.run_folder import Staging, explained

__all__ = ["MetricsLog"]


@final
class MetricsLog:
    """Appends the steps of a run, for a `with` block.

    A run that continues first drops the lines of the steps that it is about to repeat. Nothing is
    buffered, so that a full disk is met by the step that it has no room for, and not again by the
    end of the block. A step that was torn is one that a successor drops.
    """

    def __init__(self, folder: Path, first_step: int) -> None:
        self.path = folder / "metrics.jsonl"
        with explained(self.path, 0), Staging(folder) as staging:
            kept = [line for line in self._lines() if earlier(line, first_step)]
            # A new file under the old name: a reader sees either, and never a half.
            staging.write(self.path.name, b"".join(line + b"\n" for line in kept))
            staging.publish()
            self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)

    def write(self, event: Event) -> None:
        """Appends a step; other events are not for this file.

        Raises:
            CheckpointError: there is no room for it.
        """
        if isinstance(event, StepDone):
            line = to_json(event).encode() + b"\n"
            with explained(self.path, len(line)):
                while line:  # a disk that fills up takes a part first, and then says why no more
                    line = line[os.write(self._file, line) :]

    def __enter__(self) -> "MetricsLog":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            with explained(self.path, 0):
                os.close(self._file)  # NFS may say only now that there was no room
            return
        with suppress(OSError):  # which would hide the error that ends the run
            os.close(self._file)

    def _lines(self) -> list[bytes]:
        try:
            return read_whole(self.path).splitlines()
        except FileNotFoundError:
            return []


def earlier(line: bytes, first_step: int) -> bool:
    """Whether a line is whole and of a step before `first_step`."""
    try:
        return int(json.loads(line)["step"]) < first_step
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return False  # torn by a crash
