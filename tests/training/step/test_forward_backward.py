"""The checks of a worker's forward and backward passes, and the moments at which they run."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from support.harness import settings
from torch import nn

from atomo.errors import Diverged
from atomo.training.job.job import make_job
from atomo.training.step.forward_backward import ForwardBackward


class Broken(nn.Module):
    """A network whose scores are no numbers from some call on."""

    def __init__(self, network: nn.Module, calls: int) -> None:
        super().__init__()
        self.network, self.left = network, calls

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.left -= 1
        scores: torch.Tensor = self.network(images)
        return scores if self.left >= 0 else scores * math.nan


@pytest.mark.parametrize("late", [False, True], ids=["before the backward pass", "during it"])
def test_nothing_of_a_gradient_is_sent_whose_loss_is_not_finite(tmp_path: Path, late):
    """Beside a device the look comes when the first bucket does."""
    pushed: list[Any] = []
    job = make_job(settings(tmp_path, fusion="layer"), 3)
    passes = ForwardBackward(
        job, 1, torch.device("cpu"), lambda bucket, flat: pushed.append(bucket.number)
    )
    passes._looks_late = late
    broken = Broken(passes.model, 1)
    passes.model = broken
    passes.run(1)
    count = len(pushed)
    assert count > 1
    with pytest.raises(Diverged, match="the loss of worker 1 at step 2 is nan"):
        passes.run(2)
    assert len(pushed) == count
    passes.close()


class Steep(nn.Module):
    """A network whose loss and gradient are finite, and far too large."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.network(images)
        return scores * 1e25


def test_a_gradient_whose_length_overflows_has_diverged(tmp_path: Path):
    """The norm overflows though all entries are finite. No worker is the cause."""
    job = make_job(settings(tmp_path, code="svd"), 3)
    assert job.damps_at(1)
    passes = ForwardBackward(job, 1, torch.device("cpu"), lambda *_: None)
    passes.model = Steep(passes.model)
    with pytest.raises(Diverged, match="the gradient of worker 1 at step 1 is too long; --lr"):
        passes.run(1)
    passes.close()
