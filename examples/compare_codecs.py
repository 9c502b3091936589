"""Bytes and error of each codec on a real gradient: LeNet on 64 handwritten digits.

.venv/bin/python examples/compare_codecs.py [CODE ...]
"""
# ruff: noqa: T201

import sys
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import atomo
from atomo.workloads.datasets import load_dataset
from atomo.workloads.models import build_model

CODES = [
    *("sgd", "fp16", "bf16", "svd(rank=1)", "svd", "svd(rank=8)", "svd(rank=3, selection=top)"),
    *("atomo", "entrywise", "fourier", "topk(ratio=0.01)", "topk(ratio=0.01, values=fp16)"),
    *("randk", "qsgd", "terngrad", "natural", "efsignsgd", "onebit"),
]
DRAWS = 10  # seeds, since the error of a codec that samples is random


def gradient() -> list[Tensor]:
    """Returns the gradient of each parameter at the initial weights."""
    data = load_dataset("Digits", Path("data"))
    torch.manual_seed(1)
    model = build_model("LeNet", data.input_shape, data.classes)
    images, labels = data.train.batch(torch.arange(64))
    return list(torch.autograd.grad(cross_entropy(model(images), labels), [*model.parameters()]))


def flat(tensors: list[Tensor]) -> Tensor:
    """Returns all entries as one vector."""
    return torch.cat([tensor.flatten() for tensor in tensors])


def compare(code: str, tensors: list[Tensor]) -> tuple[float, float, float]:
    """Returns the mean bytes, the relative error of a draw (RMS), and that of the mean of draws."""
    frames = [atomo.encode(tensors, code, seed=seed) for seed in range(DRAWS)]
    whole, draws = flat(tensors), torch.stack([flat([*atomo.decode(f)]) for f in frames])
    each = (draws - whole).square().sum(1).mean().sqrt() / whole.norm()
    together = (draws.mean(0) - whole).norm() / whole.norm()
    return sum(map(len, frames)) / DRAWS, float(each), float(together)


tensors = gradient()
dense = 4 * flat(tensors).numel()
print(f"a gradient of {dense} bytes as float32; error: relative to its norm\n")
print(f"{'code':28}{'bytes':>10}{'ratio':>8}{'error':>8}{f'of mean of {DRAWS}':>16}")
for code in sys.argv[1:] or CODES:
    size, each, together = compare(code, tensors)
    print(f"{code:28}{size:10.0f}{dense / size:8.1f}{each:8.4f}{together:16.4f}")
