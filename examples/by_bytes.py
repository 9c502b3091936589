"""Compression without hooks: two workers in one process exchange frames through a list.

A biased codec has a memory, which adds the compression error to the worker's next gradient (error
feedback). An unbiased codec has no memory; its learning rate is scaled down by the factor by which
noise increases the squared norm of the gradient. A real job sends the frames over a network.

.venv/bin/python examples/by_bytes.py [CODE]
"""
# ruff: noqa: T201

import sys
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

import atomo
from atomo.workloads.datasets import load_dataset
from atomo.workloads.models import build_model

CODE = sys.argv[1] if len(sys.argv) > 1 else "svd(rank=2, selection=top)"
WORKERS, BATCH, STEPS, LR, MOMENTUM = 2, 32, 60, 0.02, 0.9

torch.manual_seed(0)
data = load_dataset("Digits", Path("data"))
model = build_model("LeNet", data.input_shape, data.classes)
parameters = dict(model.named_parameters())
feedback = atomo.Law.CONTRACTION in atomo.make_codec(CODE).laws
# Momentum after error feedback would repeat values that the memory delays.
optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.0 if feedback else MOMENTUM)
memories = [[torch.zeros_like(p) for p in parameters.values()] for _ in range(WORKERS)]
squares = torch.zeros(2)  # smoothed squared norms of the gradients and of their estimate
sent = 0


def square(tensors: list[torch.Tensor]) -> float:
    """Returns the squared norm of all tensors together."""
    return sum(float(tensor.square().sum()) for tensor in tensors)


for step in range(STEPS):
    frames, targets = [], []
    for worker, memory in enumerate(memories):
        images, labels = data.train.batch(torch.randint(len(data.train), (BATCH,)))
        loss = cross_entropy(model(images), labels)
        gradients = torch.autograd.grad(loss, [*parameters.values()])
        targets.append([g + error for g, error in zip(gradients, memory, strict=True)])
        frames.append(atomo.encode(targets[worker], CODE, seed=step * WORKERS + worker))
    received = [atomo.decode(frame) for frame in frames]
    if feedback:
        memories = [
            [t - sent for t, sent in zip(target, decoded, strict=True)]
            for target, decoded in zip(targets, received, strict=True)
        ]
    mean = [torch.stack(parts).mean(0) for parts in zip(*received, strict=True)]
    for parameter, estimate in zip(parameters.values(), mean, strict=True):
        parameter.grad = estimate
    if not feedback:
        true = sum(map(square, targets)) / WORKERS
        squares = 0.9 * squares + 0.1 * torch.tensor([true, square(mean)])
        optimizer.param_groups[0]["lr"] = LR * min(1.0, float(squares[0] / squares[1]))
    optimizer.step()
    sent += sum(map(len, frames))

images, labels = data.test.batch(torch.arange(len(data.test)))
with torch.inference_mode():
    accuracy = (model(images).argmax(1) == labels).float().mean()
dense = 4 * sum(p.numel() for p in parameters.values()) * WORKERS * STEPS
print(
    f"{CODE}: {dense / sent:.1f}x fewer bytes than dense; {accuracy:.1%} of the test images right"
)
