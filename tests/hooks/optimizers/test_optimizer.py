"""Wrapped optimizers, on ranks that are threads."""

from typing import Any

import pytest
import torch
from hooks.loops import batch, flat, model, on_ranks, plainly, steps, total
from support.selection import slow_but
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import StepLR

import atomo
from atomo.errors import CheckpointError, CodecError, ConfigError, Diverged


def momentum_sgd(network: nn.Module) -> torch.optim.Optimizer:
    return SGD(network.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)


def plain_sgd(network: nn.Module) -> torch.optim.Optimizer:
    return SGD(network.parameters(), lr=0.1)


def adam(network: nn.Module) -> torch.optim.Optimizer:
    return Adam(network.parameters(), lr=0.01)


@pytest.mark.slow(cases=("momentum_sgd-2",))
@pytest.mark.parametrize("size", slow_but([2], [1, 2, 3]))
@pytest.mark.parametrize("make", [momentum_sgd, adam])
def test_without_compression_it_is_the_optimizer_in_one_process(size, make):
    networks, _ = on_ranks(size, "sgd", steps(size), make)
    torch.testing.assert_close(flat(networks[0]), plainly(make), rtol=1e-5, atol=1e-6)
    assert all(flat(one).equal(flat(networks[0])) for one in networks)


def test_momentum_and_decay_in_a_memory_are_those_of_the_optimizer():
    """All entries are sent here, so that nothing is late."""
    networks, optimizers = on_ranks(
        2, "topk(ratio=1.0)", steps(2), momentum_sgd, memory="dgc(masking=False)"
    )
    torch.testing.assert_close(flat(networks[0]), plainly(momentum_sgd), rtol=1e-5, atol=1e-6)
    [group] = optimizers[0].param_groups
    assert (group["momentum"], group["weight_decay"]) == (0, 0)


def test_momentum_moves_only_where_the_memory_applies_it():
    _, [moved, _] = on_ranks(2, "topk", steps(2, 1), momentum_sgd)
    assert moved.exchange.state_dict()["memory"] == "dgc"
    _, [left, _] = on_ranks(2, "qsgd", steps(2, 1), momentum_sgd)
    assert left.param_groups[0]["momentum"] == 0.9
    with pytest.warns(UserWarning, match="memory='auto' moves it into the memory"):
        _, [asked, _] = on_ranks(2, "topk", steps(2, 1), momentum_sgd, memory="residual")
    assert asked.param_groups[0]["momentum"] == 0.9


def test_schedules_reach_the_wrapped_optimizer():
    def scheduled(rank: int, network: nn.Module, optimizer: Any) -> None:
        scheduler = StepLR(optimizer, 5, 0.5)
        for step in range(20):
            images, labels = batch(step)
            optimizer.zero_grad()
            cross_entropy(network(images), labels).backward()
            optimizer.step()
            scheduler.step()

    networks, _ = on_ranks(2, "sgd", scheduled, momentum_sgd)
    expected = plainly(momentum_sgd, lambda optimizer: StepLR(optimizer, 5, 0.5))
    torch.testing.assert_close(flat(networks[0]), expected, rtol=1e-5, atol=1e-6)


def test_ranks_begin_with_the_weights_of_rank_0_and_keep_the_same_bits():
    def check(rank: int, network: nn.Module, optimizer: Any) -> None:
        assert flat(network).equal(flat(model()))
        steps(3)(rank, network, optimizer)

    def change(rank: int, network: nn.Module) -> None:
        network[0].weight.data.add_(rank)

    networks, _ = on_ranks(3, "svd(rank=1)", check, plain_sgd, before=change)
    assert all(flat(one).equal(flat(networks[0])) for one in networks)


@pytest.mark.long(
    cases=(
        "sizes1",
        "sizes3",
    )
)
@pytest.mark.slow(cases=("sizes0",))
@pytest.mark.parametrize("sizes", slow_but([(4, 2)], [(4, 2), (4, 8), (2, 3), (3, 1)]))
def test_another_number_of_ranks_keeps_the_sum_of_the_memories(sizes):
    before, after = sizes
    gathered: list[Any] = []

    def save(rank: int, network: nn.Module, optimizer: Any) -> None:
        steps(before)(rank, network, optimizer)
        state = optimizer.exchange.gather()
        assert (state is None) == (rank > 0)
        gathered.extend([state] if state else [])

    _, old = on_ranks(before, "topk(ratio=0.1)", save, plain_sgd)

    def load(rank: int, network: nn.Module, optimizer: Any) -> None:
        optimizer.exchange.load_state_dict(gathered[0])

    _, new = on_ranks(after, "topk(ratio=0.1)", load, plain_sgd)
    torch.testing.assert_close(total(new), total(old))
    assert float(total(new).abs().max()) > 0
    assert new[0].exchange.state_dict()["step"] == 20


@pytest.mark.slow
def test_a_resumed_run_takes_the_same_steps():
    saved: dict[int, Any] = {}

    def first(rank: int, network: nn.Module, optimizer: Any) -> None:
        steps(2, 20)(rank, network, optimizer)

    def half(rank: int, network: nn.Module, optimizer: Any) -> None:
        steps(2, 10)(rank, network, optimizer)
        saved[rank] = (
            {name: tensor.clone() for name, tensor in network.state_dict().items()},
            optimizer.state_dict(),
            optimizer.exchange.state_dict(),
        )

    def rest(rank: int, network: nn.Module, optimizer: Any) -> None:
        weights, inner, exchange = saved[rank]
        network.load_state_dict(weights)
        optimizer.load_state_dict(inner)
        optimizer.exchange.load_state_dict(exchange)
        for step in range(10, 20):
            images, labels = batch(step)
            optimizer.zero_grad()
            cross_entropy(network(images[rank::2]), labels[rank::2]).backward()
            optimizer.step()

    code = "dgc(ratio=0.1, values=qsgd(bits=4))"
    whole, _ = on_ranks(2, code, first, momentum_sgd)
    on_ranks(2, code, half, momentum_sgd)
    again, _ = on_ranks(2, code, rest, momentum_sgd)
    assert flat(again[0]).equal(flat(whole[0]))


def test_a_scaler_sees_the_same_averages_on_all_ranks():
    def scaled(rank: int, network: nn.Module, optimizer: Any) -> None:
        scaler, exchange = optimizer._scaler, optimizer.exchange
        for step in range(6):
            before = exchange.state_dict()["memories"][str(rank)]
            images, labels = batch(step)
            optimizer.zero_grad()
            loss = cross_entropy(network(images[rank::2]), labels[rank::2])
            scaler.scale(loss * (torch.inf if (step, rank) == (3, 1) else 1)).backward()
            optimizer.average()
            after = exchange.state_dict()["memories"][str(rank)]
            same = all(kept.equal(after[name]) for name, kept in before.items())
            assert same == (step == 3)
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(network.parameters(), 1e3)
            scaler.step(optimizer)
            scaler.update()
        assert scaler.get_scale() == 32.0
        assert optimizer.exchange.stats.skipped == 1

    def make(network: nn.Module) -> torch.optim.Optimizer:
        return plain_sgd(network)

    scalers = [torch.amp.GradScaler("cpu", init_scale=64.0) for _ in range(2)]
    networks, _ = on_ranks(
        2, "topk(ratio=0.2)", scaled, make, each=lambda rank: {"scaler": scalers[rank]}
    )
    assert flat(networks[0]).equal(flat(networks[1]))


def test_a_rank_that_cannot_encode_is_named_on_all():
    seen: list[str] = []

    def broken(rank: int, network: nn.Module, optimizer: Any) -> None:
        images, labels = batch(0)
        cross_entropy(network(images), labels).backward()
        for number in (torch.nan, 0.0):  # and it stays so: the ranks may be out of step
            if rank == 1:
                network[2].weight.grad[0, 0] = number
            with pytest.raises(Diverged) as error:
                optimizer.average()
            seen.append(str(error.value))

    on_ranks(2, "topk(ratio=0.2)", broken, plain_sgd)
    assert seen == ["rank 1: the gradient of 2.weight is no longer finite"] * 4


def test_a_gradient_that_a_codec_refuses_is_an_error_on_all():
    seen: list[str] = []

    def broken(rank: int, network: nn.Module, optimizer: Any) -> None:
        images, labels = batch(0)
        cross_entropy(network(images), labels).backward()
        network[2].weight.grad.fill_(3e38 * rank)  # over a probability of 1/2 it is infinite
        with pytest.raises(CodecError) as error:
            optimizer.average()
        seen.append(str(error.value))

    on_ranks(2, "randk(ratio=0.5)", broken, plain_sgd)
    assert len(set(seen)) == 1
    assert seen[0].startswith("rank 1: the gradient of 2.weight: randk: scaled values overflow")


def test_a_gradient_of_zeros_leaves_its_memory_alone():
    def idle(rank: int, network: nn.Module, optimizer: Any) -> None:
        steps(2, 3)(rank, network, optimizer)
        before = optimizer.exchange.state_dict()["memories"][str(rank)]
        assert any(float(kept.abs().max()) > 0 for kept in before.values())
        optimizer.zero_grad()
        if rank == 1:
            network[0].weight.grad = torch.ones_like(network[0].weight)
        optimizer.step()
        after = optimizer.exchange.state_dict()["memories"][str(rank)]
        same = {name: kept.equal(after[name]) for name, kept in before.items()}
        assert same.pop("0.weight") == (rank == 0)
        assert all(same.values())

    on_ranks(2, "topk(ratio=0.1)", idle, plain_sgd)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"seed": 7}, "rank 1 has seed 7, rank 0 0: model and settings must be"),
        ({"bucket_mb": 2.0}, "rank 1 has bucket_mb 2, rank 0 0.0004: model"),
        ({"scaler": torch.amp.GradScaler("cpu")}, "rank 1 has scaler enabled, rank 0 none"),
        ({"memory": "none", "dense_steps": 2}, "rank 1 has memory none, rank 0 dgc; rank 1 has .*"),
    ],
)
def test_ranks_that_differ_are_told_the_difference_alone(settings, words):
    with pytest.raises(ConfigError, match=f"^{words}") as error:
        on_ranks(2, "topk", steps(2), momentum_sgd, each=lambda rank: settings if rank else {})
    assert len(str(error.value)) < 200
    assert "weight" not in str(error.value)


def alone(code: str = "sgd", **settings: Any) -> Any:
    network = model()
    return atomo.wrap_optimizer(plain_sgd(network), network, code, **settings)


def test_what_a_state_must_be():
    exchange = alone("topk").exchange
    state = exchange.state_dict()
    for change, words in (
        ({"format": 3}, "format 3; this one reads 1 and 2"),
        ({"memory": "dgc"}, "of memory 'dgc', not 'residual'"),
        ({"memories": {"1": {}}}, r"\[0\] are not in the state"),
        ({"memories": {"0": {}}}, "the state has no '/learning-rate'"),
        ({"memories": {"0": state["memories"]["0"] | {"x": torch.ones(1)}}}, "it has 'x'"),
    ):
        with pytest.raises(CheckpointError, match=words):
            exchange.load_state_dict(state | change)


def test_what_cannot_be_wrapped():
    network, other = model(), model()
    with pytest.raises(ConfigError, match="4 of the optimizer's 4 parameters are not the model's"):
        atomo.wrap_optimizer(plain_sgd(network), other, "sgd")
    with pytest.raises(ConfigError, match="bucket_mb must be a number of MB above 0"):
        alone(bucket_mb=0.0)
    with pytest.raises(ConfigError, match="add all groups"):
        alone().add_param_group({"params": []})
    scaler = torch.amp.GradScaler("cpu")
    with pytest.raises(ConfigError, match="call average"):
        alone(scaler=scaler).step()


def test_a_closure_is_averaged_within_the_step():
    network = model()
    optimizer = atomo.wrap_optimizer(plain_sgd(network), network, "topk(ratio=0.5)")
    before = flat(network)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = cross_entropy(network(batch(0)[0]), batch(0)[1])
        loss.backward()
        return loss

    assert optimizer.step(closure).item() > 0
    assert optimizer.exchange.stats.steps == 1
    assert not flat(network).equal(before)
