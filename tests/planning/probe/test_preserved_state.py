"""Passes that measure leave no trace."""

import random

import numpy as np
import torch
from torch import nn

from atomo.planning.probe import preserved_state


class Noisy(nn.Module):
    """Draws from all generators, and keeps statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop = nn.BatchNorm1d(3), nn.Dropout()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        dropped: torch.Tensor = self.drop(self.norm(x))
        return dropped * random.random() * float(np.random.rand())


def test_passes_that_measure_leave_no_trace() -> None:
    torch.manual_seed(5)
    model, x = Noisy().train(), torch.arange(12.0).view(4, 3)
    random.seed(5)
    np.random.seed(5)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    expected = torch.rand(3), random.random(), np.random.rand()
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)
    with preserved_state(model):
        model(x).sum().backward()
        assert not model.state_dict()["norm.running_mean"].equal(before["norm.running_mean"])
    drawn = torch.rand(3), random.random(), np.random.rand()
    assert drawn[0].equal(expected[0])
    assert drawn[1:] == expected[1:]
    assert all(tensor.equal(before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
