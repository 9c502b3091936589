"""Compression by hand: two workers in one process, averaged through a list of bytes.

A biased codec has a memory: what it drops is kept, and joins the worker's next gradient (error
feedback), with momentum before the codec. An unbiased one has none; its steps are shortened by as
much as its noise makes gradients longer. A real job replaces the list of bytes by whatever carries
them.

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
# Momentum after error feedback would go on pushing what comes late already.
optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.0 if feedback else MOMENTUM)
memories = [[torch.zeros_like(p) for p in parameters.values()] for _ in range(WORKERS)]
squares = torch.zeros(2)  # of the gradients and of their estimate, smoothed
sent = 0


def square(tensors: list[torch.Tensor]) -> float:
    """The squared norm of all of them together."""
    return sum(float(tensor.square().sum()) for tensor in tensors)


for step in range(STEPS):
    frames, wanted = [], []
    for worker, kept in enumerate(memories):
        images, labels = data.train.batch(torch.randint(len(data.train), (BATCH,)))
        loss = cross_entropy(model(images), labels)
        gradients = torch.autograd.grad(loss, [*parameters.values()])
        wanted.append([gradient + rest for gradient, rest in zip(gradients, kept, strict=True)])
        frames.append(atomo.encode(wanted[worker], CODE, seed=step * WORKERS + worker))
    received = [atomo.decode(frame) for frame in frames]
    if feedback:
        memories = [
            [w - out for w, out in zip(ws, outs, strict=True)]
            for ws, outs in zip(wanted, received, strict=True)
        ]
    mean = [torch.stack(parts).mean(0) for parts in zip(*received, strict=True)]
    for parameter, estimate in zip(parameters.values(), mean, strict=True):
        parameter.grad = estimate
    if not feedback:
        true = sum(map(square, wanted)) / WORKERS
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
