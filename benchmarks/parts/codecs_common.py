"""Codecs and gradients that the benchmarks of codecs share."""

import math
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Generator, Tensor

from atomo.training.step.sample_gradient import sample_gradient

__all__ = ["SPECS", "find_gradient"]

SPECS = (
    "sgd", "fp16", "bf16",
    "svd(rank=3)", "svd(rank=3, selection=top)", "entrywise(budget=0.01)", "fourier(budget=0.01)",
    "threshold(value=0.01)", "topk(ratio=0.01)", "topk(ratio=0.001)", "randk(ratio=0.01)",
    "chunktopk(ratio=0.01)", "tiletopk", "tiletopk(values=lloydmax)", "dgc(ratio=0.001)",
    "dragonn(ratio=0.001)",
    "qsgd(bits=2)", "qsgd(bits=4)", "qsgd(bits=4, coding=packed)", "qsgd(bits=7)", "terngrad",
    "natural", "natural(coding=packed)", "lloydmax",
    "signsgd", "signum", "efsignsgd", "onebit",
    "sketchml", "lss", "countsketch",
    "topk(ratio=0.01, values=fp16)", "svd(rank=3, factors=fp16)",
)  # fmt: skip


def find_gradient(path: Path | None, data_dir: Path, random: int) -> dict[str, Tensor]:
    """Returns the gradient to measure: random, from a file, or of ResNet18 on CIFAR-10."""
    if random:
        side = math.isqrt(random)
        generator = Generator().manual_seed(0)
        scale = torch.rand(side, 1, generator=generator).pow(4)  # rows of very different sizes
        return {"weight": torch.randn(side, random // side, generator=generator) * scale}
    if path and path.exists():
        return load_file(path)
    gradient = sample_gradient("ResNet18", "Cifar10", data_dir, steps=20)
    if path:
        save_file(gradient, path)
    return gradient
