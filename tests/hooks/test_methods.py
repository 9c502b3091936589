"""PowerSGD and ACP-SGD in loops of one's own, on ranks that are threads."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from hooks.loops import STEPS, batch, flat, model, on_ranks, plainly, steps, total
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD

from atomo.errors import ConfigError, Diverged

BOTH = ["powersgd", "acpsgd"]


def sgd(network: nn.Module) -> torch.optim.Optimizer:
    return SGD(network.parameters(), lr=0.1, momentum=0.5, nesterov=True)


@pytest.mark.slow
@pytest.mark.parametrize("method", BOTH)
def test_ranks_have_the_same_bits_and_learn(method):
    networks, optimizers = on_ranks(3, f"{method}(rank=1)", steps(3), sgd)
    assert all(flat(one).equal(flat(networks[0])) for one in networks)
    before, after = mean_loss(model()), mean_loss(networks[0])
    assert after < 0.7 * before, (before, after)
    assert optimizers[0].exchange.stats.ratio > 1.5


def mean_loss(network: nn.Module) -> float:
    with torch.no_grad():
        losses = [cross_entropy(network(x), y) for x, y in map(batch, range(STEPS))]
    return float(torch.stack(losses).mean())


@pytest.mark.slow(cases=("acpsgd",))
@pytest.mark.parametrize("method", BOTH)
def test_at_full_rank_it_is_plain_sgd(method):
    networks, _ = on_ranks(2, f"{method}(rank=16)", steps(2), sgd)
    torch.testing.assert_close(flat(networks[0]), plainly(sgd), rtol=1e-5, atol=1e-6)


@pytest.mark.slow(cases=("acpsgd",))
@pytest.mark.parametrize("method", BOTH)
def test_a_state_goes_on_bit_for_bit(method):
    """The state is restored on new ranks as well: the sum of memories is kept."""
    code, weights, states = f"{method}(rank=1)", [], []

    def body(rank: int, network: nn.Module, optimizer: Any) -> None:
        steps(2, 5)(rank, network, optimizer)
        gathered = optimizer.exchange.gather()
        if rank == 0:
            weights.append({n: one.clone() for n, one in network.state_dict().items()})
            states.append((gathered, deepcopy(optimizer.state_dict())))
        steps(2, 3)(rank, network, optimizer)

    whole, _ = on_ranks(2, code, body, sgd)
    (state, inner), (begun,) = states[0], weights

    def again(rank: int, network: nn.Module, optimizer: Any) -> None:
        network.load_state_dict(begun)
        optimizer.load_state_dict(deepcopy(inner))  # which would share its tensors
        optimizer.exchange.load_state_dict(state)
        steps(2, 3)(rank, network, optimizer)

    resumed, _ = on_ranks(2, code, again, sgd)
    assert flat(resumed[0]).equal(flat(whole[0]))
    _, more = on_ranks(
        3, code, lambda rank, network, optimizer: optimizer.exchange.load_state_dict(state), sgd
    )
    sums = {n: sum(one[n] for one in state["memories"].values()) for n in state["memories"]["0"]}
    assert total(more).equal(torch.cat([sums[n].flatten() for n in sorted(sums)]))


@pytest.mark.parametrize("method", BOTH)
def test_what_is_not_finite_is_an_error_on_all_ranks(method):
    told = []

    def body(rank: int, network: nn.Module, optimizer: Any) -> None:
        images, labels = batch(0)
        scale = torch.nan if rank == 1 else 1.0
        (cross_entropy(network(images), labels) * scale).backward()
        with pytest.raises(Diverged, match="a rank's gradient is not finite"):
            optimizer.step()
        told.append(rank)

    on_ranks(3, f"{method}(rank=1)", body, sgd)
    assert sorted(told) == [0, 1, 2]


@pytest.mark.parametrize(
    ("code", "settings", "message"),
    [
        ("powersgd(rank=0)", {}, "rank must be a whole number of 1 or more, got 0"),
        ("powersgd(rank=-1)", {}, "rank must be a whole number of 1 or more, got -1"),
        (
            "powersgd(ranks=4)",
            {},
            r"powersgd takes a rank and nothing else, such as powersgd\(rank",
        ),
        ("acpsgd(rank=1, selection='top')", {}, "acpsgd takes a rank and nothing else"),
        ("PowerSGD(rank=2)", {"memory": "momentum"}, "with memory residual or dgc, not momentum"),
        ("powersgd", {"memory": "none"}, "go with memory residual or dgc, not none"),
    ],
)
def test_what_cannot_be_is_refused(code, settings, message):
    with pytest.raises(ConfigError, match=message):
        on_ranks(1, code, steps(1, 1), lambda network: SGD(network.parameters()), **settings)
