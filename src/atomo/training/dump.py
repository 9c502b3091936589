"""Gradients on disk, every so many steps of a run, for `atomo inspect`."""

from pathlib import Path
from typing import final

from jaxtyping import Float
from safetensors.torch import save
from torch import Tensor

from atomo.fusion import Bucket
from atomo.training.run_folder import Staging

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
        """Writes the step, if it is one of those.

        Raises:
            CheckpointError: there is no room for it.
        """
        if not self._gradient:
            return
        with Staging(self._folder) as staging:
            staging.write(f"step-{step:08}.safetensors", save(self._gradient))
            staging.publish()
        self._gradient = {}
