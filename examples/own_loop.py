"""Compression in your own training loop: the optimizer averages gradients over all ranks.

.venv/bin/torchrun --nproc-per-node 2 examples/own_loop.py [CODE]
.venv/bin/mpirun --oversubscribe -n 2 .venv/bin/python examples/own_loop.py [CODE]

Without a launcher there is one rank.
"""
# ruff: noqa: T201

import sys
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import StepLR

import atomo
from atomo.workloads.datasets import load_dataset
from atomo.workloads.models import build_model

CODE = sys.argv[1] if len(sys.argv) > 1 else "topk(ratio=0.02)"
BATCH, STEPS = 64, 80  # images of all ranks together

torch.manual_seed(0)
data = load_dataset("Digits", Path("data"))
model = build_model("LeNet", data.input_shape, data.classes)
optimizer = atomo.wrap_optimizer(
    torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9), model, CODE
)
scheduler = StepLR(optimizer, step_size=40, gamma=0.3)
exchange = optimizer.exchange

draws = torch.Generator().manual_seed(0)  # equal draws on all ranks; each rank takes its share
for _ in range(STEPS):
    chosen = torch.randint(len(data.train), (BATCH,), generator=draws)
    images, labels = data.train.batch(chosen[exchange.rank :: exchange.size])
    optimizer.zero_grad()
    cross_entropy(model(images), labels).backward()
    optimizer.step()
    scheduler.step()

if exchange.rank == 0:
    images, labels = data.test.batch(torch.arange(len(data.test)))
    with torch.inference_mode():
        accuracy = (model(images).argmax(1) == labels).float().mean()
    print(
        f"{CODE}, {exchange.size} ranks: {exchange.stats.ratio:.1f}x fewer bytes than dense; "
        f"{accuracy:.1%} of the test images right"
    )
