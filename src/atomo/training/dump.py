"""Gradients on disk, every so many steps of a run, for `atomo inspect`."""

from pathlib import Path
from typing import final

from jaxtyping import Float
from safetensors.torch import save_file
from torch import Tensor

from atomo.errors import CheckpointError
from atomo.fusion import Bucket

__all__ = ["GradientDump"]


@final
class GradientDump:
    """Writes one worker's gradients, before memory and codec have touched them."""

    def __init__(self, folder: Path, every: int) -> None:
        self._folder, self._every = folder, every
        self._gradient: dict[str, Tensor] = {}

    def add(self, bucket: Bucket, flat: Float[Tensor, " n"], step: int) -> None:
        """Takes in one bucket of a step."""
        if self._every and step % self._every == 0:
            for slot in bucket.slots:
                view = flat[slot.start : slot.stop].view(slot.shape)
                self._gradient[slot.name] = view.cpu().clone()

    def finish(self, step: int) -> None:
        """Writes the step, if it is one of those."""
        if not self._gradient:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            save_file(self._gradient, self._folder / f"step-{step:08}.safetensors")
        except OSError as error:
            raise CheckpointError(f"--dump-every: {self._folder}: {error.strerror}") from error
        self._gradient = {}
