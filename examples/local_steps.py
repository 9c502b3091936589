"""Local steps: ranks train alone, and average what has changed every 20 steps.

.venv/bin/torchrun --nproc-per-node 2 examples/local_steps.py [CODE]
.venv/bin/mpirun --oversubscribe -n 2 .venv/bin/python examples/local_steps.py [CODE]

Without a launcher there is one rank.
"""
# ruff: noqa: T201

import sys
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

import atomo
from atomo.workloads.datasets import load_dataset
from atomo.workloads.models import build_model

CODE = sys.argv[1] if len(sys.argv) > 1 else "topk(ratio=0.1)"
BATCH, STEPS = 64, 200  # images of all ranks together

torch.manual_seed(0)
data = load_dataset("Digits", Path("data"))
model = build_model("LeNet", data.input_shape, data.classes)
optimizer = atomo.local_steps(
    model, torch.optim.AdamW(model.parameters(), lr=2e-3), CODE, every=20, outer="auto"
)
exchange = optimizer.exchange

draws = torch.Generator().manual_seed(0)  # equal draws on all ranks; each rank takes its share
while optimizer.steps < STEPS:
    chosen = torch.randint(len(data.train), (BATCH,), generator=draws)
    images, labels = data.train.batch(chosen[exchange.rank :: exchange.size])
    optimizer.zero_grad()
    cross_entropy(model(images), labels).backward()
    optimizer.step()

if exchange.rank == 0:
    images, labels = data.test.batch(torch.arange(len(data.test)))
    with optimizer.anchor(), torch.inference_mode():
        accuracy = (model(images).argmax(1) == labels).float().mean()
    ratio = exchange.stats.ratio * STEPS / exchange.stats.steps  # dense bytes are those of a round
    print(
        f"{CODE}, {exchange.size} ranks: {ratio:.1f}x fewer bytes than dense; "
        f"{accuracy:.1%} of the test images right"
    )
