"""Gradients on disk, every so many steps of a run, for `atomo inspect`."""

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
    """Writes one worker's gradients, before memory and codec have touched them."""

    def __init__(self, folder: Path, every: int) -> None:
        self._folder, self._every = folder, every
        self._gradient: dict[str, Tensor] = {}
        self._outage = RetryingWriter("gradients", lambda told: say(told.text))

    def add(self, bucket: Bucket, flat: Float[Tensor, " n"], step: int) -> None:
        """Takes in one bucket of a step."""
        if self._every and step % self._every == 0:
            for slot in bucket.slots:
                view = flat[slot.start : slot.stop].view(slot.shape)
                self._gradient[slot.name] = view.cpu().clone()

    def finish(self, step: int) -> None:
        """Writes the step, if it is one of those. One that cannot be written is left out."""
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
    """Tells a person: a worker has nobody else."""
    sys.stderr.write(f"storage: {visible(text)}\n")
