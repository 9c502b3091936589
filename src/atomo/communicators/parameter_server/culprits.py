"""Whose frames a sum cannot take, where several were to be added at once."""

import math
from collections.abc import Callable, Mapping
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from atomo.communicators.exchange import add_frame
from atomo.errors import FrameError, FrameFault
from atomo.fusion import Bucket
from atomo.wire import Bytes

__all__ = ["Spoilt", "is_finite", "not_decodable", "not_finite"]


@final
class Spoilt(FrameError):
    """Frames that cannot be decoded, or whose gradients hold NaN or infinity."""

    def __init__(self, by: Mapping[int, FrameError]) -> None:
        super().__init__("; ".join(f"worker {worker}: {error}" for worker, error in by.items()))
        self.by = by
        """What is wrong, by worker."""


def is_finite(flat: Float[Tensor, " n"]) -> bool:
    """Whether no entry is NaN or infinite; the sum tells, unless it overflows by itself."""
    return math.isfinite(float(flat.sum())) or bool(flat.isfinite().all())


def not_decodable(bucket: Bucket, frames: Mapping[int, Bytes]) -> dict[int, FrameError]:
    """Whose frames of a bucket are refused, and why."""
    return refused(bucket, frames, lambda _: None)


def not_finite(bucket: Bucket, frames: Mapping[int, Bytes]) -> dict[int, FrameError]:
    """Whose gradients of a bucket hold NaN or infinity; nobody's, where only their sum does."""

    def check(flat: Float[Tensor, " n"]) -> None:
        if not is_finite(flat):
            raise FrameError(
                f"bucket {bucket.number}: the gradient holds NaN or infinity", FrameFault.NUMBERS
            )

    return refused(bucket, frames, check)


def refused(
    bucket: Bucket, frames: Mapping[int, Bytes], check: Callable[[Float[Tensor, " n"]], None]
) -> dict[int, FrameError]:
    found, scratch = dict[int, FrameError](), torch.empty(bucket.size)
    for worker, frame in frames.items():
        try:
            add_frame(bucket, frame, scratch.zero_(), 1.0)
            check(scratch)
        except FrameError as error:
            found[worker] = error
    return found
