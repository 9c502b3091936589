"""Hugging Face Accelerate with compressed gradients: two lines more than without.

.venv/bin/torchrun --nproc-per-node 2 examples/with_accelerate.py [CODE]

Each epoch is saved; a second start continues from the last checkpoint. It needs the extra:
`.venv/bin/pip install -e '.[accelerate]'`.
"""
# ruff: noqa: T201

import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, ProjectConfiguration
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import atomo  # 1
from atomo.workloads.datasets import load_dataset
from atomo.workloads.models import build_model

CODE = sys.argv[1] if len(sys.argv) > 1 else "svd(rank=2, selection=top)"
BATCH, EPOCHS = 32, 3
FOLDER = Path("accelerate-run")

saving = ProjectConfiguration(str(FOLDER), automatic_checkpoint_naming=True, total_limit=2)
accelerator = Accelerator(
    cpu=not torch.cuda.is_available(),
    dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True),  # for an exact resume
    project_config=saving,
)

torch.manual_seed(0)
data = load_dataset("Digits", Path("data"))
images = TensorDataset(*data.train.batch(torch.arange(len(data.train))))
model = build_model("LeNet", data.input_shape, data.classes)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
attachment = atomo.accelerate_hook(accelerator, CODE, optimizer=optimizer)  # 2: before prepare
loader = DataLoader(images, BATCH, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

saved = sorted(FOLDER.glob("checkpoints/checkpoint_*"))
if saved:
    accelerator.load_state(str(saved[-1]))  # includes the memory of each rank
    saving.iteration = int(saved[-1].name.rpartition("_")[2]) + 1
for epoch in range(saving.iteration, EPOCHS):
    loader.set_epoch(epoch)
    for batch, labels in loader:
        optimizer.zero_grad()
        accelerator.backward(cross_entropy(model(batch), labels))
        optimizer.step()
    accelerator.save_state()

if accelerator.is_main_process:
    batch, labels = (
        part.to(accelerator.device) for part in data.test.batch(torch.arange(len(data.test)))
    )
    with torch.inference_mode():
        accuracy = (accelerator.unwrap_model(model)(batch).argmax(1) == labels).float().mean()
    for exchange in attachment.exchanges:  # one for each model; none in a single process
        print(f"{CODE}, {exchange.size} ranks: {exchange.stats.ratio:.1f}x fewer bytes than dense")
    print(f"{accuracy:.1%} of the test images right after {EPOCHS} epochs")
accelerator.end_training()
