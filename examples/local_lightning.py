"""Local steps in Lightning: one callback.

.venv/bin/python examples/local_lightning.py [CODE]

Lightning starts two processes. It needs the extra: `.venv/bin/pip install -e '.[lightning]'`.
"""
# ruff: noqa: T201

import sys
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import atomo
from atomo.workloads.datasets import load_dataset
from atomo.workloads.models import build_model

CODE = sys.argv[1] if len(sys.argv) > 1 else "topk(ratio=0.1)"
BATCH, EPOCHS = 32, 6


class Digits(LightningModule):
    """LeNet on handwritten digits."""

    def __init__(self) -> None:
        super().__init__()
        self.network = build_model("LeNet", data.input_shape, data.classes)

    def training_step(self, batch: list[Tensor], number: int) -> Tensor:
        images, labels = batch
        return cross_entropy(self.network(images), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=2e-3)


torch.manual_seed(0)
data = load_dataset("Digits", Path("data"))
images = TensorDataset(*data.train.batch(torch.arange(len(data.train))))
module = Digits()
callback = atomo.lightning_local_steps(CODE, every=10, outer="auto")
trainer = Trainer(
    accelerator="cpu",
    devices=2,
    strategy="ddp",
    max_epochs=EPOCHS,
    callbacks=[callback],
    logger=False,
    enable_progress_bar=False,
)
trainer.fit(module, DataLoader(images, BATCH, shuffle=True))  # ckpt_path="..." resumes

if trainer.is_global_zero:
    batch, labels = data.test.batch(torch.arange(len(data.test)))
    with torch.inference_mode():  # the module has the anchor
        accuracy = (module.network(batch).argmax(1) == labels).float().mean()
    replica = callback.attachment.replica
    stats = replica.exchange.stats
    ratio = stats.ratio * replica.steps / stats.steps  # dense bytes are those of a round
    print(
        f"{CODE}, {replica.exchange.size} ranks: {ratio:.1f}x fewer bytes than dense; "
        f"{accuracy:.1%} of the test images right"
    )
