"""The marker of a finished run: an evaluator that follows the run stops at it."""

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from atomo.core.safe_read import read_whole
from atomo.errors import CheckpointError
from atomo.training.folder.run_folder import PATIENCE_S, Staging, Wait, decoded, explained, present

__all__ = ["Finished", "finish", "finished", "unfinish"]

FINISHED = "finished.json"


@dataclass(frozen=True)
class Finished:
    """The marker of a finished run."""

    step: int
    reason: str


def finish(folder: Path, step: int, reason: str) -> None:
    """Marks the run as finished after `step`, so that an evaluator can stop.

    Raises:
        CheckpointError: the marker cannot be written.
    """
    with Staging(folder) as staging:
        staging.write(FINISHED, json.dumps(asdict(Finished(step, reason))).encode() + b"\n")
        staging.publish()


def finished(
    folder: Path, *, patience_s: float = PATIENCE_S, wait: Wait = time.sleep
) -> Finished | None:
    """Returns the marker of a finished run, or None.

    Raises:
        CheckpointError: the marker cannot be read, or is malformed.
    """
    text = present(folder / FINISHED, read_whole, patience_s, wait)
    if text is None:
        return None
    match decoded(text):
        case {"step": int(step), "reason": str(reason)}:
            return Finished(step, reason)
    raise CheckpointError(f"{folder / FINISHED} is not the mark of a finished run: {text[:80]!r}")


def unfinish(folder: Path) -> None:
    """Removes the marker before a run continues.

    Raises:
        CheckpointError: the marker cannot be removed.
    """
    with explained(folder / FINISHED, 0):
        (folder / FINISHED).unlink(missing_ok=True)
