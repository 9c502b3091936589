"""PyTorch's own compression in the training of headlines.py: DDP, two processes, the same images in
the same order, the same initial weights and the same schedule.
"""

import multiprocessing
import time
from multiprocessing.queues import SimpleQueue
from typing import Any, Final, final

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from atomo.config.settings import Settings
from atomo.core.process.allocator import keep_freed_memory
from atomo.training.job.job import make_job
from atomo.workloads.datasets import epoch_seed
from ddp_train import power_sgd
from parts.headlines.plan import WORKERS

__all__ = ["train_ddp"]

ADDRESS: Final = "tcp://127.0.0.1:29513"
EVALUATION_BATCH: Final = 1000


def train_ddp(chosen: Settings, rank: int) -> list[dict[str, Any]]:
    """Trains ResNet-20 in DDP with PyTorch's PowerSGD hook; returns a record of each epoch.

    Args:
        chosen: the settings of the dense run.
        rank: of the matrices of PowerSGD.
    """
    records: SimpleQueue[dict[str, Any]] = multiprocessing.get_context("spawn").SimpleQueue()
    spawn(train_rank, (chosen, rank, records), nprocs=WORKERS)  # type: ignore[no-untyped-call]
    return [records.get() for _ in range(chosen.epochs)]


def train_rank(
    worker: int, chosen: Settings, rank: int, records: SimpleQueue[dict[str, Any]]
) -> None:
    """Trains as one process of DDP; the first reports."""
    keep_freed_memory()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=ADDRESS, rank=worker, world_size=WORKERS)
    try:
        training = Training(chosen, rank, worker)
        for epoch in range(1, chosen.epochs + 1):
            steps = training.train_epoch(epoch)
            if worker == 0:
                records.put({"epoch": epoch, **steps, **training.evaluate()})
            dist.barrier()
    finally:
        dist.destroy_process_group()


@final
class Training:
    """The training of one process."""

    def __init__(self, chosen: Settings, rank: int, worker: int) -> None:
        self.job = make_job(chosen, chosen.n)
        self.ddp, self.state = power_sgd(self.job.model, rank)
        self.shard = self.job.shard(worker + 1)
        self.optimizer = torch.optim.SGD(
            self.ddp.parameters(), momentum=chosen.momentum, weight_decay=chosen.weight_decay
        )

    def train_epoch(self, epoch: int) -> dict[str, float]:
        """Takes the steps of an epoch; returns the step reached, and means of its steps."""
        count, loss, started = self.job.steps_per_epoch, 0.0, time.perf_counter()
        last = epoch * count
        for step in range(last - count + 1, last + 1):
            loss += self.take_step(step) / count
        return {
            "step": last,
            "train_loss": round(loss, 4),
            "sent_bytes": round(4 * self.state.total_numel_after_compression / last),
            "damping": 1.0,
            "step_s": round((time.perf_counter() - started) / count, 4),
        }

    def take_step(self, step: int) -> float:
        """Takes a step; returns its loss."""
        seed = epoch_seed(self.job.settings.seed, self.shard.epoch(step))
        batch = self.job.workload.train.batch(self.shard.indices(step), seed)
        for group in self.optimizer.param_groups:
            group["lr"] = self.job.rate.at(step)
        self.optimizer.zero_grad()
        loss = self.job.workload.objective.loss(self.ddp(*batch.inputs), batch.targets)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return loss.item()

    def evaluate(self) -> dict[str, float]:
        """Returns the accuracy and the mean loss on the test images."""
        test, model = self.job.workload.test, self.ddp.module.eval()
        right, loss = 0, 0.0
        with torch.inference_mode():
            for part in torch.split(torch.arange(len(test)), EVALUATION_BATCH):
                batch = test.batch(part)
                outputs = model(*batch.inputs)
                right += int((outputs.argmax(1) == batch.targets).sum())
                loss += float(self.job.workload.objective.loss(outputs, batch.targets)) * len(part)
        model.train()
        return {"top1": round(right / len(test), 4), "test_loss": round(loss / len(test), 4)}
