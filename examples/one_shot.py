"""Encode and decode your own tensors, without a training run.

.venv/bin/python examples/one_shot.py
"""
# ruff: noqa: T201

import torch

import atomo

weight = torch.randn(64, 32, 3, 3, generator=torch.Generator().manual_seed(0))
bias = torch.randn(64, generator=torch.Generator().manual_seed(1))

# A list decodes to a list. Small vectors, such as biases, are not compressed.
data = atomo.encode([weight, bias], "svd(rank=3)", seed=7)
again, same = atomo.decode(data)
print(f"{4 * (weight.numel() + bias.numel())} bytes as float32, {len(data)} bytes encoded")
print(f"bias unchanged: {same.equal(bias)}; weight: {tuple(again.shape)}, {again.dtype}")

# Spectral ATOMO is unbiased: the mean over many seeds approaches the tensor.
mean = torch.zeros_like(weight)
for seed in range(1, 401):
    [decoded] = atomo.decode(atomo.encode([weight], "svd(rank=3)", seed=seed))
    mean += decoded
    if seed in (1, 20, 400):
        error = (mean / seed - weight).norm() / weight.norm()
        print(f"relative error of the mean of {seed:3} decoded: {error:.2f}")

# Frames are checked before memory is allocated.
try:
    atomo.decode(data[:-1])
except atomo.AtomoError as error:
    print(f"refused: {error}")
