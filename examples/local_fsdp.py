"""Local steps between replicas of a model that FSDP2 has sharded.

.venv/bin/torchrun --nproc-per-node 4 examples/local_fsdp.py [CODE]

Make each host a replica: its ranks share the weights over fast links, and hosts exchange the
compressed differences of a round.
"""
# ruff: noqa: T201

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import atomo
from atomo.workloads.datasets import load_dataset
from atomo.workloads.models import build_model

CODE = sys.argv[1] if len(sys.argv) > 1 else "topk(ratio=0.1)"
BATCH, EPOCHS, SHARDS = 16, 6, 2

dist.init_process_group("gloo")
size = dist.get_world_size()
mesh = init_device_mesh("cpu", (size // SHARDS, SHARDS), mesh_dim_names=("replicate", "shard"))
torch.manual_seed(0)
data = load_dataset("Digits", Path("data"))
images = TensorDataset(*data.train.batch(torch.arange(len(data.train))))
sampler = DistributedSampler(images)
loader = DataLoader(images, BATCH, sampler=sampler)
model = build_model("LeNet", data.input_shape, data.classes)
fully_shard(model, mesh=mesh["shard"])
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
optimizer = atomo.local_steps(
    model, optimizer, CODE, every=10, outer="auto", replicas=mesh["replicate"]
)

for epoch in range(EPOCHS):
    sampler.set_epoch(epoch)
    for batch, labels in loader:
        optimizer.zero_grad()
        cross_entropy(model(batch), labels).backward()
        optimizer.step()

batch, labels = data.test.batch(torch.arange(len(data.test)))
model.reshard()  # weights that a forward pass has gathered are not those of the anchor
with optimizer.anchor(), torch.no_grad():
    accuracy = (model(batch).argmax(1) == labels).float().mean()
    model.reshard()
if dist.get_rank() == 0:
    stats = optimizer.exchange.stats
    ratio = stats.ratio * optimizer.steps / stats.steps  # dense bytes are those of a round
    print(
        f"{CODE}, {size} ranks: {ratio:.1f}x fewer bytes than dense; "
        f"{accuracy:.1%} of the test images right"
    )
dist.destroy_process_group()
