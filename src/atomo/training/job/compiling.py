"""Compilation of kernels before the first step, so that the step's time does not include it."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Generator

from atomo.codecs import Codec
from atomo.codecs.momentum import MomentumState

__all__ = ["compile_kernels"]

SHAPE = (64, 32)  # large enough that no kernel is skipped for a small tensor


def compile_kernels(codecs: Iterable[Codec[Any]]) -> None:
    """Encodes and decodes a small tensor with each codec. Compiled kernels are cached on disk."""
    generator = Generator().manual_seed(0)
    gradient = torch.randn(SHAPE, generator=generator)
    for codec in codecs:
        residual = torch.zeros(SHAPE)
        codec.add_decoded(codec.encode(gradient, generator), residual.clone())
        codec.encode_residual(gradient, residual, generator)
        momentum = MomentumState(torch.zeros(SHAPE), 0.9, nesterov=False, masking=True)
        codec.encode_momentum(gradient.clone(), momentum, residual, generator)
