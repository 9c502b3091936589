"""FSDP2 without replicas: the gradients of the reduce-scatter between all ranks are compressed.

.venv/bin/torchrun --nproc-per-node 2 examples/fsdp_reduce_scatter.py [CODE]

For ranks that share one model over slow links. With several fast hosts, make each a replica and
compress between them: examples/with_fsdp.py.
"""
# ruff: noqa: T201

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import atomo
from atomo.workloads.datasets import load_dataset
from atomo.workloads.models import build_model

CODE = sys.argv[1] if len(sys.argv) > 1 else "topk(ratio=0.01)"
BATCH, EPOCHS = 16, 4

dist.init_process_group("gloo")
torch.manual_seed(0)
data = load_dataset("Digits", Path("data"))
images = TensorDataset(*data.train.batch(torch.arange(len(data.train))))
sampler = DistributedSampler(images)
loader = DataLoader(images, BATCH, sampler=sampler)
model = build_model("LeNet", data.input_shape, data.classes)
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
exchange = atomo.fsdp_hook(model, CODE, optimizer=optimizer, reduce_scatter=True)

for epoch in range(EPOCHS):
    sampler.set_epoch(epoch)
    for batch, labels in loader:
        optimizer.zero_grad()
        cross_entropy(model(batch), labels).backward()
        optimizer.step()

batch, labels = data.test.batch(torch.arange(len(data.test)))
with torch.no_grad():
    accuracy = (model(batch).argmax(1) == labels).float().mean()
if dist.get_rank() == 0:
    print(
        f"{CODE}, {exchange.size} ranks: {exchange.stats.ratio:.1f}x fewer bytes than dense; "
        f"{accuracy:.1%} of the test images right"
    )
dist.destroy_process_group()
