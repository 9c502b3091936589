"""What a worker tells the master about one step, beside its gradient."""

import math
from dataclasses import astuple, dataclass, fields
from typing import final

import torch
from torch import Tensor

from atomo.codecs import Field
from atomo.errors import FrameError

__all__ = ["Report"]


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
        """Float64, one entry a field."""
        return torch.tensor(astuple(self), dtype=torch.float64)

    @property
    def is_finite(self) -> bool:
        """Whether every number is one."""
        return all(map(math.isfinite, astuple(self)))

    @classmethod
    def of(cls, tensor: Tensor) -> "Report":
        """The inverse of `tensor`.

        Raises:
            FrameError: it is of another size.
        """
        if tensor.shape != cls.field().most:
            raise FrameError(f"a report of shape {tuple(tensor.shape)}; not {cls.field().most}")
        return cls(*tensor.tolist())

    @classmethod
    def field(cls) -> Field:
        """What a receiver accepts."""
        return Field(torch.float64, (len(fields(cls)),))
