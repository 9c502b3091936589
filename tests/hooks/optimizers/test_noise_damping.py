"""Steps that hooks shorten by the noise of an unbiased codec."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from hooks.loops import batch, flat, model, on_ranks
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import StepLR

import atomo
from atomo.errors import CheckpointError, ConfigError
from atomo.exchange.collectives.direct import Direct
from atomo.hooks.optimizers.noise_damping import damp, release, resolve_damping
from atomo.hooks.optimizers.noise_meter import NoiseMeter
from atomo.hooks.options.hook_config import HookConfig
from atomo.training.optim.noise_damping import Damping
from atomo.transports import network as memory_network

NOISY = "randk(ratio=0.05)"


def sgd(network: nn.Module) -> torch.optim.Optimizer:
    return SGD(network.parameters(), lr=1.0)


def losses_of(rank: int, network: nn.Module, optimizer: Any, first: int, last: int) -> list[float]:
    losses = []
    for step in range(first, last):
        images, labels = batch(step)
        optimizer.zero_grad()
        loss = cross_entropy(network(images[rank::2]), labels[rank::2])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def square(network: nn.Module) -> float:
    """Returns the squared norm of the gradients."""
    return sum(float(p.grad.norm()) ** 2 for p in network.parameters() if p.grad is not None)


@pytest.mark.slow
def test_it_trains_where_whole_steps_diverge():
    ends: dict[Any, float] = {}

    def body(rank: int, network: nn.Module, optimizer: Any) -> None:
        losses = losses_of(rank, network, optimizer, 0, 60)
        ends[optimizer.exchange.meter is not None] = sum(losses[-10:]) / 10

    for chosen in (None, False):
        on_ranks(2, NOISY, body, sgd, memory="none", noise_damping=chosen)
    assert ends[True] < 0.8 < 2 < ends[False]


def test_the_rate_of_a_step_is_scaled_by_what_the_noise_leaves_of_it():
    squares: dict[int, list[float]] = {0: [], 1: []}
    estimates, rates = [], []

    def body(rank: int, network: nn.Module, optimizer: Any) -> None:
        if rank == 0:
            optimizer.register_step_pre_hook(
                lambda one, *_: rates.append(one.param_groups[0]["lr"])
            )
        scheduler = StepLR(optimizer, 2, 0.5)
        for step in range(4):
            images, labels = batch(step)
            optimizer.zero_grad()
            cross_entropy(network(images[rank::2]), labels[rank::2]).backward()
            squares[rank].append(square(network))
            optimizer.average()
            if rank == 0:
                estimates.append(square(network))
            before = optimizer.param_groups[0]["lr"]
            optimizer.step()
            assert optimizer.param_groups[0]["lr"] == before
            scheduler.step()
        assert optimizer.param_groups[0]["lr"] == 0.25

    on_ranks(2, NOISY, body, sgd, memory="none", dense_steps=1)
    damping, expected = Damping(), [1.0]  # the first step is dense, and without noise
    for step in range(1, 4):
        gradient = (squares[0][step] + squares[1][step]) / 2
        expected.append(damping.factor(gradient, estimates[step]) * 0.5 ** (step // 2))
    assert rates == pytest.approx(expected, rel=1e-5)
    assert min(rates) < 0.5


@pytest.mark.slow
def test_a_resumed_run_goes_on_bit_for_bit_and_all_ranks_alike():
    saved: dict[int, Any] = {}

    def whole(rank: int, network: nn.Module, optimizer: Any) -> None:
        losses_of(rank, network, optimizer, 0, 4)
        saved[rank] = deepcopy([network.state_dict(), optimizer.exchange.state_dict()])
        losses_of(rank, network, optimizer, 4, 8)

    def rest(rank: int, network: nn.Module, optimizer: Any) -> None:
        network.load_state_dict(saved[rank][0])
        optimizer.exchange.load_state_dict(saved[rank][1])
        losses_of(rank, network, optimizer, 4, 8)

    networks, made = on_ranks(2, NOISY, whole, sgd, memory="none")
    again, _ = on_ranks(2, NOISY, rest, sgd, memory="none")
    assert flat(again[0]).equal(flat(networks[0]))
    assert flat(networks[1]).equal(flat(networks[0]))
    assert made[0].exchange.damping == made[1].exchange.damping < 0.5
    assert len(saved[0][1]["noise_damping"]) == 2
    with pytest.raises(CheckpointError, match="noise_damping must be two numbers"):
        made[0].exchange.load_state_dict(saved[0][1] | {"noise_damping": [1.0]})


def test_a_closure_steps_with_the_factor_of_its_own_gradients():
    def by_closure(rank: int, network: nn.Module, optimizer: Any) -> None:
        for step in range(3):
            images, labels = batch(step)

            def closure(images: Any = images, labels: Any = labels) -> Any:
                optimizer.zero_grad()
                loss = cross_entropy(network(images[rank::2]), labels[rank::2])
                loss.backward()
                return loss

            assert optimizer.step(closure).item() > 0

    def by_step(rank: int, network: nn.Module, optimizer: Any) -> None:
        losses_of(rank, network, optimizer, 0, 3)

    one, other = (on_ranks(2, NOISY, b, sgd, memory="none")[0] for b in (by_closure, by_step))
    assert flat(one[0]).equal(flat(other[0]))


def test_a_step_that_fails_leaves_no_scaled_rate_behind():
    network = model()
    alone = Direct(memory_network(1)[0], 10.0)
    optimizer, meter = SGD(network.parameters(), lr=1.0), NoiseMeter(alone, bool)
    meter.factor = 0.5
    damp([optimizer], meter)

    rates: list[float] = []
    optimizer.register_step_post_hook(lambda *_: rates.append(optimizer.param_groups[0]["lr"]))

    def fail(*_: Any) -> None:
        raise KeyError("another hook")

    broken = optimizer.register_step_pre_hook(fail)
    with pytest.raises(KeyError):
        optimizer.step()
    assert optimizer.param_groups[0]["lr"] == 0.5
    broken.remove()
    optimizer.step()
    optimizer.step()
    assert rates == [1.0, 1.0]
    release([optimizer])
    assert not optimizer._optimizer_step_pre_hooks


@pytest.mark.parametrize(
    ("code", "settings", "words"),
    [
        ("topk", {}, r"noise_damping=True: topk is not unbiased, and makes no gradient longer"),
        ("sgd", {}, "sgd is not unbiased, and makes no gradient longer"),
        ("powersgd", {}, "PowerSGD by .* is not unbiased"),
        ("qsgd(bits=8)", {"memory": "residual"}, "memory residual sends later what the codec"),
    ],
)
def test_what_has_no_noise_is_refused_at_all_doors(code, settings, words):
    with pytest.raises(ConfigError, match=words):
        HookConfig(code, noise_damping=True, **settings).check()
    with pytest.raises(ConfigError, match=words):
        atomo.lightning_callback(code, noise_damping=True, **settings)


def test_optimizers_that_cannot_be_damped_are_refused_and_left_alone_where_nobody_asks():
    network, other = model(), nn.Linear(2, 2)
    parameters = [*network.parameters()]
    plain, adam = SGD(parameters, lr=1.0), Adam(parameters, lr=1.0)
    wide = SGD([*parameters, *other.parameters()], lr=1.0)
    for optimizers, words in (
        ([], "knows no optimizer, and so no learning rate to scale; give optimizer"),
        ([adam], "the learning rate of SGD is scaled, and the optimizer is Adam; leave it out"),
        ([plain, adam], "the optimizer is Adam"),
        ([wide], "2 of the optimizer's 6 parameters are not the model's"),
    ):
        with pytest.raises(ConfigError, match=words):
            resolve_damping(HookConfig(NOISY, "none", noise_damping=True), optimizers, parameters)
    for optimizers in ([], [adam], [wide]):
        config, damped = resolve_damping(HookConfig(NOISY, "none"), optimizers, parameters)
        assert (config.noise_damping, damped) == (False, [])
    config, damped = resolve_damping(HookConfig(NOISY, "none"), [plain, adam], parameters)
    assert (config.noise_damping, damped) == (True, [plain])


def test_ranks_that_disagree_are_told():
    def nothing(rank: int, network: nn.Module, optimizer: Any) -> None: ...

    with pytest.raises(ConfigError, match="rank 1 has noise_damping False, rank 0 True"):
        on_ranks(2, NOISY, nothing, sgd, lambda rank: {"noise_damping": rank == 0}, memory="none")
