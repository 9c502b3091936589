"""Precision of the passes. Weights, gradients and steps are always float32.

Micikevicius et al., "Mixed Precision Training", ICLR 2018. bfloat16 has the range of float32;
gradients in float16 would underflow, so that the loss is scaled before the backward pass, by the
largest factor without overflow.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, final

import torch
from torch import Tensor, nn

from atomo.fusion import Bucket, Gradients

__all__ = ["LossScale", "buffers_of", "forward_in", "put_back", "why_slow"]

TYPES: Final = {"bf16": torch.bfloat16, "fp16": torch.float16}
# The defaults of `torch.amp.GradScaler`.
FIRST: Final = 65536.0
GROWTH_INTERVAL: Final = 2000  # steps without overflow


def why_slow(precision: str, device: torch.device) -> str:
    """Returns why passes in this precision are slower than in float32; empty if they are not."""
    if precision != "bf16" or device.type != "cpu":
        return ""
    match torch.backends.cpu.get_cpu_capability():
        case "AVX2":
            lacks, factor = "no AVX-512", "several times"
        case "AVX512" if not torch.cpu._is_avx512_bf16_supported():
            lacks, factor = "AVX-512 without its part for bfloat16", "about twice"
        case _:
            return ""
    return (
        f"--precision bf16: this processor has {lacks}, so that PyTorch's convolutions in "
        f"bfloat16 take {factor} as long as in float32; --precision fp32 is faster here"
    )


@contextmanager
def forward_in(precision: str, device: torch.device) -> Iterator[None]:
    """Enters PyTorch's autocast: operations that are safe in half precision are computed in it.

    Args:
        precision: fp32 (without autocast), bf16 or fp16.
        device: of the computation.
    """
    if precision == "fp32":
        yield
        return
    with torch.autocast(device.type, dtype=TYPES[precision]):
        yield


def buffers_of(model: nn.Module) -> list[Tensor]:
    """Copies the buffers that passes change, such as the statistics of batch norm."""
    return [tensor.clone() for tensor in model.buffers()]


@torch.no_grad()
def put_back(model: nn.Module, before: list[Tensor]) -> None:
    """Restores a model's buffers, so that a repeated pass counts once."""
    for tensor, was in zip(model.buffers(), before, strict=True):
        tensor.copy_(was)


@final
class LossScale:
    """The factor on the loss, and the buckets that wait until all gradients are known to be finite.

    As in GradScaler, 2000 steps without overflow double the factor, and an overflow halves it. But
    GradScaler then skips the step; here the gradient is computed again with the smaller factor,
    because other workers wait for it.
    """

    def __init__(self, first: float = FIRST) -> None:
        self.value = first
        self._held: list[tuple[Bucket, Tensor]] = []
        self._steps = 0

    def begin(self) -> None:
        """Prepares for a gradient, computed for the first time or again."""
        self._held.clear()

    def hold(self, bucket: Bucket, flat: Tensor) -> None:
        """Keeps a bucket until `release`."""
        self._held.append((bucket, flat))

    def overflows(self, gradients: Gradients) -> bool:
        """Returns True if the gradient must be computed again. With a factor of 1 or less, a
        smaller factor does not help.
        """
        if gradients.are_finite() or self.value <= 1:
            return False
        self.value, self._steps = self.value / 2, 0
        return True

    def release(self) -> list[tuple[Bucket, Tensor]]:
        """Returns the buckets in order, with their gradients divided by the factor."""
        released = [(bucket, flat.div_(self.value)) for bucket, flat in self._held]
        self._steps += 1
        if self._steps == GROWTH_INTERVAL:
            self.value, self._steps = 2 * self.value, 0
        return released
