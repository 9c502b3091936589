"""Files of gradients, every few steps of a run, for `atomo inspect`."""

import sys
from pathlib import Path
from typing import final

from jaxtyping import Float
from safetensors.torch import save
from torch import Tensor

from atomo.core.safe_read import make_folder
from atomo.core.visible import visible
from atomo.fusion import Bucket
from atomo.training.folder.run_folder import Staging, explained
from atomo.training.records.retrying_writer import RetryingWriter

__all__ = ["GradientDump"]


@final
class GradientDump:
    """Writer of one worker's gradients, as they are before memory and codec change them."""

    def __init__(self, folder: Path, period: int) -> None:
        self._folder, self._every = folder, period
        self._gradient: dict[str, Tensor] = {}
        self._outage = RetryingWriter("gradients", lambda event: say(event.text))

    def add(self, bucket: Bucket, flat: Float[Tensor, " n"], step: int) -> None:
        """Copies one bucket of a step."""
        if self._every and step % self._every == 0:
            for slot in bucket.slots:
                view = flat[slot.start : slot.stop].view(slot.shape)
                self._gradient[slot.name] = view.cpu().clone()

    def finish(self, step: int) -> None:
        """Writes the gradient of the step, if due; a gradient that cannot be written is skipped."""
        if self._gradient:
            self._outage.attempt(lambda: self._write(step))
        self._gradient = {}

    def _write(self, step: int) -> None:
        with explained(self._folder, 0):
            self._folder.parent.mkdir(parents=True, exist_ok=True)
            make_folder(self._folder)
        with Staging(self._folder) as staging:
            staging.write(f"step-{step:08}.safetensors", save(self._gradient))
            staging.publish()


def say(text: str) -> None:
    """Prints a caution to stderr: a worker has no event log."""
    sys.stderr.write(f"storage: {visible(text)}\n")
