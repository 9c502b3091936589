"""Compression in a training loop of your own: two workers in one process, averaged through bytes.

What each worker's codec drops is kept and joins its next gradient (error feedback).
A real job replaces the list of bytes by whatever carries them.

python examples/own_loop.py [CODE]
"""
# ruff: noqa: T201

import sys
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

import atomo
from atomo.data import load_dataset
from atomo.models import build_model

CODE = sys.argv[1] if len(sys.argv) > 1 else "svd(rank=2, selection=top)"
WORKERS, BATCH, STEPS = 2, 32, 40

torch.manual_seed(0)
data = load_dataset("Digits", Path("data"))
model = build_model("LeNet", data.input_shape, data.classes)
parameters = dict(model.named_parameters())
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
memories = [[torch.zeros_like(p) for p in parameters.values()] for _ in range(WORKERS)]
sent = 0

for step in range(STEPS):
    frames = []
    for worker, kept in enumerate(memories):
        images, labels = data.train.batch(torch.randint(len(data.train), (BATCH,)))
        loss = cross_entropy(model(images), labels)
        gradients = torch.autograd.grad(loss, [*parameters.values()])
        wanted = [gradient + rest for gradient, rest in zip(gradients, kept, strict=True)]
        frames.append(atomo.encode(wanted, CODE, seed=step * WORKERS + worker))
        arrived = atomo.decode(frames[-1])
        memories[worker] = [w - out for w, out in zip(wanted, arrived, strict=True)]
    received = [atomo.decode(frame) for frame in frames]
    for parameter, *parts in zip(parameters.values(), *received, strict=True):
        parameter.grad = torch.stack(parts).mean(0)
    optimizer.step()
    sent += sum(map(len, frames))

images, labels = data.test.batch(torch.arange(len(data.test)))
with torch.inference_mode():
    accuracy = (model(images).argmax(1) == labels).float().mean()
dense = 4 * sum(p.numel() for p in parameters.values()) * WORKERS * STEPS
print(
    f"{CODE}: {dense / sent:.1f}x fewer bytes than dense; {accuracy:.1%} of the test images right"
)
