"""Local steps in the Trainer of Hugging Face transformers: one line more than without.

.venv/bin/torchrun --nproc-per-node 2 examples/local_trainer.py [CODE]

It needs the extras: `.venv/bin/pip install -e '.[accelerate,text]'`.
"""
# ruff: noqa: T201

import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import Trainer, TrainingArguments

import atomo
from atomo.workloads.datasets import load_dataset
from atomo.workloads.models import build_model

CODE = sys.argv[1] if len(sys.argv) > 1 else "topk(ratio=0.1)"


class Digits(nn.Module):
    """LeNet on handwritten digits."""

    def __init__(self) -> None:
        super().__init__()
        self.network = build_model("LeNet", data.input_shape, data.classes)

    def forward(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        scores = self.network(images)
        return {"loss": cross_entropy(scores, labels), "logits": scores}


torch.manual_seed(0)
data = load_dataset("Digits", Path("data"))
images, labels = data.train.batch(torch.arange(len(data.train)))
examples = [{"images": i, "labels": n} for i, n in zip(images, labels, strict=True)]
arguments = TrainingArguments(
    output_dir="trainer-local",
    per_device_train_batch_size=32,
    num_train_epochs=6,
    learning_rate=2e-3,
    use_cpu=not torch.cuda.is_available(),
    save_strategy="epoch",  # train(resume_from_checkpoint=True) continues in the round
    report_to="none",
    disable_tqdm=True,
)
trainer = Trainer(Digits(), arguments, train_dataset=examples)
local = atomo.trainer_local_steps(trainer, CODE, every=10, outer="auto")
trainer.train()

if trainer.is_world_process_zero():
    batch, answers = (
        part.to(arguments.device) for part in data.test.batch(torch.arange(len(data.test)))
    )
    with torch.inference_mode():  # the model has the anchor
        accuracy = (trainer.model.network(batch).argmax(1) == answers).float().mean()
    replica = local.replica
    stats = replica.exchange.stats
    ratio = stats.ratio * replica.steps / stats.steps  # dense bytes are those of a round
    print(
        f"{CODE}, {replica.exchange.size} ranks: {ratio:.1f}x fewer bytes than dense; "
        f"{accuracy:.1%} of the test images right"
    )
