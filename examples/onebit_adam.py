"""1-bit Adam in a loop without DistributedDataParallel: after a dense start, one bit an entry.

.venv/bin/torchrun --nproc-per-node 2 examples/onebit_adam.py
"""
# ruff: noqa: T201

from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import atomo
from atomo.workloads.datasets import load_dataset
from atomo.workloads.models import build_model

BATCH, EPOCHS = 32, 7
FREEZE = 32  # steps until the variance is frozen: a fifth of all

dist.init_process_group("gloo")
ranks = dist.get_world_size()
torch.manual_seed(0)
data = load_dataset("Digits", Path("data"))
images = TensorDataset(*data.train.batch(torch.arange(len(data.train))))
sampler = DistributedSampler(images)
loader = DataLoader(images, BATCH, sampler=sampler)
model = build_model("LeNet", data.input_shape, data.classes)  # the optimizer averages by itself
optimizer = atomo.onebit_adam(model.parameters(), lr=1e-3, freeze_step=FREEZE)

steps = 0
for epoch in range(EPOCHS):
    sampler.set_epoch(epoch)
    for batch, labels in loader:
        optimizer.zero_grad()
        cross_entropy(model(batch), labels).backward()
        optimizer.step()
        steps += 1

# In a ring, a rank sends two times (ranks - 1) / ranks of an uncompressed gradient.
dense = 2 * (ranks - 1) / ranks * 4 * sum(p.numel() for p in model.parameters())
sent = FREEZE * dense + optimizer.mean.sent_bytes
if dist.get_rank() == 0:
    batch, labels = data.test.batch(torch.arange(len(data.test)))
    with torch.inference_mode():
        accuracy = (model(batch).argmax(1) == labels).float().mean()
    print(
        f"1-bit Adam, {ranks} ranks: {steps * dense / sent:.1f}x fewer bytes than dense; "
        f"{accuracy:.1%} of the test images right"
    )
dist.destroy_process_group()
