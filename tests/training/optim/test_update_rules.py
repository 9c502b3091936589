"""The update rules are PyTorch's, bit for bit, without the import that its classes begin with."""

import pytest
import torch

from atomo.training.optim import update_rules
from atomo.training.optim.one_thread import on_one_thread
from atomo.training.optim.update_rules import Adam, Sgd

RATES = [0.1, 0.05, 0.02, 0.02]
SGD = [
    {"momentum": 0.0, "nesterov": False, "weight_decay": 0.0},
    {"momentum": 0.9, "nesterov": False, "weight_decay": 1e-2},
    {"momentum": 0.9, "nesterov": True, "weight_decay": 1e-2},
]
PAIRS = [(lambda w, o=o: torch.optim.SGD([w], lr=1, **o), lambda o=o: Sgd(**o)) for o in SGD]
PAIRS += [
    (lambda w: torch.optim.Adam([w], lr=1, weight_decay=1e-2), lambda: Adam(weight_decay=1e-2))
]


@pytest.mark.parametrize("piece", [update_rules.PIECE, 320])
@pytest.mark.parametrize(("theirs", "ours"), PAIRS, ids=["plain", "momentum", "nesterov", "adam"])
def test_the_bits_of_pytorch_s_optimizers(theirs, ours, piece, monkeypatch):
    monkeypatch.setattr(update_rules, "PIECE", piece)
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(1000, generator=generator)
    parameter = torch.nn.Parameter(weights.clone())
    optimizer, rule = theirs(parameter), ours()
    for rate in RATES:
        gradient = torch.randn(1000, generator=generator)
        parameter.grad = gradient.clone()
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        with on_one_thread():
            rule.step(weights, gradient, rate)
    assert weights.equal(parameter.detach())
    expected = {k: v for k, v in optimizer.state[parameter].items() if v is not None}
    assert rule.state.keys() == expected.keys()
    assert all(tensor.equal(expected[kind]) for kind, tensor in rule.state.items())


@pytest.mark.parametrize(("name", "ours"), [("sgd", PAIRS[1][1]), ("adam", PAIRS[-1][1])])
def test_what_one_thread_makes_in_between_is_as_long_as_a_piece(name, ours, monkeypatch):
    real, longest = getattr(update_rules, name), []

    def noted(weights, *args, **settings):
        longest.append(max(map(len, weights)))
        real(weights, *args, **settings)

    monkeypatch.setattr(update_rules, name, noted)
    weights, rule = torch.ones(2 * update_rules.PIECE + 5), ours()
    with on_one_thread():
        for threads in (1, 1, 2):  # several would wait for each other at each piece
            torch.set_num_threads(threads)
            rule.step(weights, weights.clone(), 0.1)
    assert longest == [update_rules.PIECE, update_rules.PIECE, len(weights)]
