"""Kernels are compiled when first used: here, before the first step, and not in its time."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Generator

from atomo.codecs import Codec
from atomo.codecs.momentum import MomentumState

__all__ = ["compile_kernels"]

SHAPE = (64, 32)  # entries enough that nothing is skipped for being small


def compile_kernels(codecs: Iterable[Codec[Any]]) -> None:
    """Encodes and decodes something small with each codec. Compiled kernels are kept on disk."""
    generator = Generator().manual_seed(0)
    gradient = torch.randn(SHAPE, generator=generator)
    for codec in codecs:
        kept = torch.zeros(SHAPE)
        codec.add_decoded(codec.encode(gradient, generator), kept.clone())
        codec.encode_residual(gradient, kept, generator)
        momentum = MomentumState(torch.zeros(SHAPE), 0.9, nesterov=False, masking=True)
        codec.encode_momentum(gradient.clone(), momentum, kept, generator)
