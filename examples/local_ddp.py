"""Local steps in PyTorch's DistributedDataParallel: one line more than without.

.venv/bin/torchrun --nproc-per-node 2 examples/local_ddp.py [CODE]
"""
# ruff: noqa: T201

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import atomo
from atomo.workloads.datasets import load_dataset
from atomo.workloads.models import build_model

CODE = sys.argv[1] if len(sys.argv) > 1 else "topk(ratio=0.1)"
BATCH, EPOCHS = 32, 6

dist.init_process_group("gloo")
torch.manual_seed(0)
data = load_dataset("Digits", Path("data"))
images = TensorDataset(*data.train.batch(torch.arange(len(data.train))))
sampler = DistributedSampler(images)
loader = DataLoader(images, BATCH, sampler=sampler)
model = DistributedDataParallel(build_model("LeNet", data.input_shape, data.classes))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
optimizer = atomo.local_steps(model, optimizer, CODE, every=10, outer="auto")

for epoch in range(EPOCHS):
    sampler.set_epoch(epoch)
    for batch, labels in loader:
        optimizer.zero_grad()
        cross_entropy(model(batch), labels).backward()
        optimizer.step()

if dist.get_rank() == 0:
    batch, labels = data.test.batch(torch.arange(len(data.test)))
    with optimizer.anchor(), torch.inference_mode():
        accuracy = (model.module(batch).argmax(1) == labels).float().mean()
    stats = optimizer.exchange.stats
    ratio = stats.ratio * optimizer.steps / stats.steps  # dense bytes are those of a round
    print(
        f"{CODE}, {dist.get_world_size()} ranks: {ratio:.1f}x fewer bytes than dense; "
        f"{accuracy:.1%} of the test images right"
    )
dist.destroy_process_group()
