"""Costs that ranks measure, travel, and agree on; and that measuring leaves no trace."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from support import PATIENCE_S, together
from torch import nn

from atomo.codecs import make_codec
from atomo.communicators import Direct
from atomo.communicators.allgather import Allgather
from atomo.communicators.allreduce import Allreduce
from atomo.errors import FrameError
from atomo.planning import measure_costs
from atomo.probing import (
    Line,
    Probe,
    agreed,
    agreed_flow,
    answer_uplink,
    measure_beside,
    measure_rounds,
    measure_uplink,
    untouched,
)
from atomo.transports import network

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


@pytest.mark.slow  # the jobs of tests/training/test_fused.py do it, too
@pytest.mark.parametrize(("kind", "code"), [(Allgather, "topk(ratio=0.1)"), (Allreduce, "sgd")])
def test_ranks_without_a_master_measure_their_links_together(kind, code) -> None:
    codec, found = make_codec(code), [Line()] * 2
    gradient = {f"p{n}": torch.ones(20, 30 + n) for n in range(2)} | {"bias": torch.ones(7)}
    costs = measure_costs(codec, kind.__name__, gradient, 1)
    transports = network(2)

    def rank(number: int) -> None:
        collective = Direct(transports[number], PATIENCE_S)
        # Bytes of one rank are seldom those of another: all must measure the same messages.
        order = costs.each if number else costs.each[::-1]
        own = replace(costs, each=order)
        found[number] = measure_rounds(kind, codec, collective, gradient, own)

    together([lambda n=n: rank(n) for n in range(2)], lambda: transports[0].abort(1))
    assert all(line.start_s > 0 or line.byte_s > 0 for line in found)


def test_a_master_measures_the_links_to_it() -> None:
    transports, found = network(3), list[Line]()
    workers = [lambda t=t: answer_uplink(t, PATIENCE_S) for t in transports[1:]]
    together([lambda: found.append(measure_uplink(transports[0], PATIENCE_S)), *workers])
    assert found[0].start_s >= 0
    assert found[0].byte_s >= 0


def test_an_order_that_is_none_is_refused() -> None:
    master, worker = network(2)
    master.send(1, np.zeros(5, np.uint8), "noise")
    with pytest.raises(FrameError, match="5 bytes came where an order to measure"):
        answer_uplink(worker, PATIENCE_S)
