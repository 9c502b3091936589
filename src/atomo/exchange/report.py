"""The report of a worker about one step, which travels beside its gradient."""

from collections.abc import Mapping
from dataclasses import astuple, dataclass, fields, replace
from typing import Final, final

import torch
from torch import Tensor

from atomo.codecs import Field
from atomo.core.bounds import IMAGES
from atomo.errors import FrameError, FrameFault

__all__ = ["MAX_IMAGES", "Report", "check_images"]

MAX_IMAGES: Final = int(IMAGES.most)
FLOAT32: Final = float(torch.finfo(torch.float32).max)
SECONDS: Final = (-1e7, 1e7)  # four months; a difference of clocks may be a little below 0


@final
@dataclass(frozen=True)
class Report:
    """One worker's step, in numbers."""

    loss: float  # mean over its images
    correct: float  # images with the right class as the most likely
    images: float
    compute_s: float  # forward and backward
    encode_s: float
    send_s: float
    wait_s: float  # for the weights, or for the gradients of others
    square: float = 0.0  # squared norm of the gradient, where steps are damped by it
    follow_s: float = 0.0  # repeating the master's steps, with `--down updates`
    ending: float = 0.0  # why it asks for an end after this step; 0: it does not
    saving: float = 0.0  # 1 where it asks for a checkpoint after this step

    def tensor(self) -> Tensor:
        """Returns the report as float64, one entry a field."""
        return torch.tensor(astuple(self), dtype=torch.float64)

    def plus(self, later: "Report") -> "Report":
        """Returns the report of this step and a later step together, with the later wishes."""
        images = self.images + later.images
        loss = (self.loss * self.images + later.loss * later.images) / images
        names = "correct", "compute_s", "encode_s", "send_s", "wait_s", "follow_s"
        sums = {name: getattr(self, name) + getattr(later, name) for name in names}
        return replace(later, loss=loss, images=images, **sums)

    @classmethod
    def of(cls, tensor: Tensor, max_images: int = MAX_IMAGES) -> "Report":
        """Returns the inverse of `tensor`.

        Args:
            tensor: section that a rank sent.
            max_images: of the step.

        Raises:
            FrameError: the size is wrong, or a number is out of range.
        """
        if tensor.shape != cls.field().max_shape:
            raise FrameError(
                f"a report of shape {tuple(tensor.shape)}; not {cls.field().max_shape}"
            )
        report = cls(*tensor.tolist())
        if complaint := report.complaint(max_images):
            raise FrameError(f"a report in which {complaint}", FrameFault.NUMBERS)
        return report

    def complaint(self, max_images: int = MAX_IMAGES) -> str:
        """Returns the name and the bounds of a number out of range; empty if there is none."""
        bounds = {"images": (1, max_images), "correct": (0, self.images), **BOUNDS}
        for name, (low, high) in bounds.items():
            value = getattr(self, name)
            if not low <= value <= high:  # nor is NaN
                return f"{name} = {value:g}, not in {low:g}..{high:g}"
        return ""

    @classmethod
    def field(cls) -> Field:
        """Describes the section that a receiver accepts."""
        return Field(torch.float64, (len(fields(cls)),))


def check_images(reports: Mapping[int, Report], max_images: int) -> None:
    """Raises FrameError if a rank reports more images than a step has."""
    for rank, report in reports.items():
        if complaint := report.complaint(max_images):
            raise FrameError(f"rank {rank} sent a report in which {complaint}", FrameFault.NUMBERS)


BOUNDS: Final[Mapping[str, tuple[float, float]]] = {
    "loss": (-FLOAT32, FLOAT32),
    **dict.fromkeys(("compute_s", "encode_s", "send_s", "wait_s", "follow_s"), SECONDS),
    "square": (0, 1e90),  # of 10^12 entries at most, each a float32
    "ending": (0, 99),
    "saving": (0, 1),
}
