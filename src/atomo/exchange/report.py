"""The report of a worker about one step, which travels beside its gradient."""

from collections.abc import Mapping
from dataclasses import astuple, dataclass, fields
from typing import Final, final

import torch
from torch import Tensor

from atomo.codecs import Field
from atomo.core.bounds import IMAGES
from atomo.errors import FrameError, FrameFault

__all__ = ["MOST_IMAGES", "Report", "check_images"]

MOST_IMAGES: Final = int(IMAGES.most)
FLOAT32: Final = float(torch.finfo(torch.float32).max)
SECONDS: Final = (-1e7, 1e7)  # four months; a difference of clocks may be a little below 0


@final
@dataclass(frozen=True)
class Report:
    """One worker's step, in numbers."""

    loss: float  # mean over its images
    correct: float  # images whose most likely class is the right one
    images: float
    compute_s: float  # forward and backward
    encode_s: float
    send_s: float
    wait_s: float  # for the weights, or for the gradients of others
    square: float = 0.0  # squared norm of the gradient, where steps are damped by it
    follow_s: float = 0.0  # repeating the master's step, where that is how weights come down
    ending: float = 0.0  # why it asks for an end after this step; 0: it does not
    saving: float = 0.0  # 1 where it asks for a checkpoint after this step

    def tensor(self) -> Tensor:
        """Returns the report as float64, one entry a field."""
        return torch.tensor(astuple(self), dtype=torch.float64)

    @classmethod
    def of(cls, tensor: Tensor, most_images: int = MOST_IMAGES) -> "Report":
        """Returns the inverse of `tensor`.

        Args:
            tensor: what a rank sent.
            most_images: of the step.

        Raises:
            FrameError: it is of another size, or a number in it is impossible.
        """
        if tensor.shape != cls.field().max_shape:
            raise FrameError(
                f"a report of shape {tuple(tensor.shape)}; not {cls.field().max_shape}"
            )
        report = cls(*tensor.tolist())
        if complaint := report.complaint(most_images):
            raise FrameError(f"a report in which {complaint}", FrameFault.NUMBERS)
        return report

    def complaint(self, most_images: int = MOST_IMAGES) -> str:
        """Returns which number is impossible in a step of so many images, and its bounds, or ""."""
        bounds = {"images": (1, most_images), "correct": (0, self.images), **BOUNDS}
        for name, (least, most) in bounds.items():
            value = getattr(self, name)
            if not least <= value <= most:  # nor is NaN
                return f"{name} = {value:g}, not in {least:g}..{most:g}"
        return ""

    @classmethod
    def field(cls) -> Field:
        """Describes the section that a receiver accepts."""
        return Field(torch.float64, (len(fields(cls)),))


def check_images(reports: Mapping[int, Report], most: int) -> None:
    """Raises FrameError where a rank reports more images than a step has."""
    for rank, report in reports.items():
        if complaint := report.complaint(most):
            raise FrameError(f"rank {rank} sent a report in which {complaint}", FrameFault.NUMBERS)


BOUNDS: Final[Mapping[str, tuple[float, float]]] = {
    "loss": (-FLOAT32, FLOAT32),
    **dict.fromkeys(("compute_s", "encode_s", "send_s", "wait_s", "follow_s"), SECONDS),
    "square": (0, 1e90),  # of 10^12 entries at most, each a float32
    "ending": (0, 99),
    "saving": (0, 1),
}
