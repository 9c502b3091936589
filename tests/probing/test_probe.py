"""Costs that ranks measure, travel, and agree on; and that measuring leaves no trace."""

import random
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from atomo.planning import EXCHANGES, Link
from atomo.probing import (
    Line,
    Probe,
    agreed,
    agreed_flow,
    measure_beside,
    untouched,
)

ONE = Probe((1.0, 4.0), (0.1, 0.2, 0.5), (1.0, 1.0, 0.0), (10.0, 0.0, 2.0), 0.5)
OTHER = Probe((2.0, 3.0), (0.3, 0.1, 0.4), (0.0, 2.0, 0.1), (8.0, 4.0, 2.0), 0.2)


def test_numbers_come_back_as_they_were() -> None:
    probe = replace(ONE, line=Line(0.25, 1e-9))
    assert Probe.from_numbers(probe.numbers()) == probe


def test_the_slowest_rank_decides_and_a_master_adds_its_links() -> None:
    master = replace(Probe.nothing(2), line=Line(0.25, 0.125))
    flow = agreed_flow(agreed([one.numbers() for one in (ONE, OTHER, master)]))
    assert flow.ready == (2.0, 4.0)
    assert flow.slowing == 0.5
    assert flow.each[0] == (0.3, 10 * 0.125, 1.0)
    assert flow.each[1] == (0.2, 4 * 0.125, 2.0)
    assert flow.message == (0.5, 0.25 + 2 * 0.125, 0.1)


class Noisy(nn.Module):
    """Draws from all generators, and keeps statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop = nn.BatchNorm1d(3), nn.Dropout()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(self.norm(x)) * random.random() * float(np.random.rand())


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
    with untouched(model):
        model(x).sum().backward()
        assert not model.norm.running_mean.equal(before["norm.running_mean"])
    drawn = torch.rand(3), random.random(), np.random.rand()
    assert drawn[0].equal(expected[0])
    assert drawn[1:] == expected[1:]
    assert all(tensor.equal(before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_what_encoding_and_the_backward_pass_cost_each_other_is_in_range() -> None:
    passes = iter([2.0, 2.0, 4.0, 4.0])  # seconds, as told: the last two beside encoding
    found = measure_beside(lambda: next(passes), lambda: sum(range(1000)))
    assert found.slowing == 0.5
    assert 1 <= found.stretch <= 3


def test_a_message_waits_as_often_as_its_ranks_do_for_each_other() -> None:
    exchange = EXCHANGES["Allreduce"](4)
    line = Line.of(Link(bytes_per_s=3.0, latency_s=0.25), exchange, rounds=2)
    assert line == Line(start_s=1.0, byte_s=0.5)
