"""Local steps in Hugging Face Accelerate: one line more than without.

.venv/bin/torchrun --nproc-per-node 2 examples/local_accelerate.py [CODE]

It needs the extra: `.venv/bin/pip install -e '.[accelerate]'`.
"""
# ruff: noqa: T201

import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import atomo
from atomo.workloads.datasets import load_dataset
from atomo.workloads.models import build_model

CODE = sys.argv[1] if len(sys.argv) > 1 else "topk(ratio=0.1)"
BATCH, EPOCHS = 32, 6

accelerator = Accelerator(cpu=not torch.cuda.is_available())
torch.manual_seed(0)
data = load_dataset("Digits", Path("data"))
images = TensorDataset(*data.train.batch(torch.arange(len(data.train))))
model = build_model("LeNet", data.input_shape, data.classes)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
loader = DataLoader(images, BATCH, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
local = atomo.accelerate_local_steps(accelerator, model, CODE, every=10, outer="auto")

for epoch in range(EPOCHS):
    loader.set_epoch(epoch)
    for batch, labels in loader:
        optimizer.zero_grad()
        accelerator.backward(cross_entropy(model(batch), labels))
        optimizer.step()
accelerator.save_state("accelerate-local")  # the anchor, and a file for each rank

if accelerator.is_main_process:
    batch, labels = (
        part.to(accelerator.device) for part in data.test.batch(torch.arange(len(data.test)))
    )
    replica = local.replica
    with replica.anchor(), torch.inference_mode():
        accuracy = (accelerator.unwrap_model(model)(batch).argmax(1) == labels).float().mean()
    stats = replica.exchange.stats
    ratio = stats.ratio * replica.steps / stats.steps  # dense bytes are those of a round
    print(
        f"{CODE}, {replica.exchange.size} ranks: {ratio:.1f}x fewer bytes than dense; "
        f"{accuracy:.1%} of the test images right"
    )
accelerator.end_training()
