"""metrics.jsonl: one line of JSON for each step of a run."""

import json
from io import TextIOWrapper
from pathlib import Path
from typing import final

from atomo.errors import CheckpointError
from atomo.training.events import Event, StepDone, to_json

__all__ = ["MetricsLog"]


@final
class MetricsLog:
    """Appends the steps of a run, for a `with` block.

    A run that continues first drops the lines of the steps that it is about to repeat.
    """

    def __init__(self, folder: Path, first_step: int) -> None:
        self.path = folder / "metrics.jsonl"
        try:
            kept = [line for line in self._lines() if earlier(line, first_step)]
            # A new file under the old name: a reader sees either, and never a half.
            staged = self.path.with_suffix(".tmp")
            staged.write_text("".join(line + "\n" for line in kept))
            staged.replace(self.path)
            self._file: TextIOWrapper = self.path.open("a")
        except OSError as error:
            raise CheckpointError(f"cannot write {self.path}: {error.strerror}") from error

    def write(self, event: Event) -> None:
        """Appends a step; other events are not for this file."""
        if isinstance(event, StepDone):
            try:
                self._file.write(to_json(event) + "\n")
                self._file.flush()
            except OSError as error:
                raise CheckpointError(f"cannot write {self.path}: {error.strerror}") from error

    def __enter__(self) -> "MetricsLog":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _lines(self) -> list[str]:
        return self.path.read_text().splitlines() if self.path.exists() else []


def earlier(line: str, first_step: int) -> bool:
    """Whether a line is whole and of a step before `first_step`."""
    try:
        return int(json.loads(line)["step"]) < first_step
    except (ValueError, KeyError, TypeError):
        return False  # torn by a crash
