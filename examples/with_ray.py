"""Ray Train: a worker group whose gradients travel compressed, with a checkpoint in each epoch.

python examples/with_ray.py [CODE [FOLDER [EPOCHS]]]

The same command with the same FOLDER and more epochs goes on after the last one.
"""
# ruff: noqa: T201

import sys
import tempfile
from pathlib import Path
from typing import Any

import ray.train
import torch
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model
from torch.nn import Module
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import atomo
from atomo.workloads.datasets import load_dataset
from atomo.workloads.datasets.base import Dataset
from atomo.workloads.models import build_model

CODE = sys.argv[1] if len(sys.argv) > 1 else "svd(rank=2, selection=top)"
FOLDER = Path(sys.argv[2] if len(sys.argv) > 2 else "runs/ray").absolute()
EPOCHS = int(sys.argv[3]) if len(sys.argv) > 3 else 3
WORKERS, BATCH = 2, 32


def network(data: Dataset) -> Module:
    """Builds the network. Not in `train`: a function of a script is sent to workers by pickle, and
    the word `classes` beside `torch` would have `torch.classes` sent too, which cannot be pickled.
    """
    return build_model("LeNet", data.input_shape, data.classes)


def train(config: dict[str, Any]) -> None:
    """Trains on one worker; Ray has joined the group of torch.distributed."""
    torch.manual_seed(0)
    rank = ray.train.get_context().get_world_rank()
    data = load_dataset("Digits", Path("data"))
    images = TensorDataset(*data.train.batch(torch.arange(len(data.train))))
    sampler = DistributedSampler(images)
    loader = DataLoader(images, BATCH, sampler=sampler)
    model = prepare_model(network(data))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    state, hook = atomo.ddp_hook(model, config["code"], optimizer=optimizer)
    model.register_comm_hook(state, hook)  # `prepare_model` returns a DistributedDataParallel

    first = 0
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            saved = torch.load(Path(folder) / f"rank-{rank}.pt")
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        state.load_state_dict(saved["exchange"])
        first = saved["epoch"] + 1

    for epoch in range(first, config["epochs"]):
        sampler.set_epoch(epoch)
        for batch, labels in loader:
            optimizer.zero_grad()
            cross_entropy(model(batch), labels).backward()
            optimizer.step()
        # Every worker has a file, since each has gradients of its own that it has not sent yet.
        with tempfile.TemporaryDirectory() as folder:
            saved = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
            saved |= {"exchange": state.state_dict(), "epoch": epoch}
            torch.save(saved, Path(folder) / f"rank-{rank}.pt")
            batch, labels = data.test.batch(torch.arange(len(data.test)))
            with torch.inference_mode():
                right = float((model.module(batch).argmax(1) == labels).float().mean())
            figures = {"first": first, "accuracy": right, "ratio": state.stats.ratio}
            ray.train.report(figures, checkpoint=Checkpoint.from_directory(folder))


if __name__ == "__main__":
    trainer = TorchTrainer(
        train,
        train_loop_config={"code": CODE, "epochs": EPOCHS},
        torch_config=TorchConfig(backend="gloo"),  # nccl on GPUs
        scaling_config=ScalingConfig(num_workers=WORKERS),
        # A worker that is lost has all start again, from the last checkpoint.
        run_config=RunConfig(
            name=FOLDER.name,
            storage_path=str(FOLDER.parent),
            failure_config=FailureConfig(max_failures=3),
        ),
    )
    figures = trainer.fit().metrics
    print(
        f"{CODE}, {WORKERS} ranks from epoch {figures['first']}: {figures['ratio']:.1f}x fewer "
        f"bytes than dense; {figures['accuracy']:.1%} of the test images right"
    )
