"""Means one round late, schedules of rounds, fragments by name, and the moments of other ranks."""

import copy
from typing import Any

import pytest
import torch
from hooks.local_ranks import adamw, anchor_of, one_step, plain_sgd, replicas, steps
from hooks.loops import batch, flat, model
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, AdamW

import atomo
from atomo.errors import CheckpointError, ConfigError
from atomo.options.rounds import Rounds

PLAIN = "sgd(lr=1)"


class Weight(nn.Module):
    """One weight, 1.0."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))


# Gradients 2 and 4, two steps a round: round 1 changes the weights by -4 and -8, a mean of -6. It
# reaches the anchor after round 2, and each replica adds its own round 2.
LATE = {
    1: (
        [[1, -1, -3, -5, -9, -11, -15, -17], [1, -3, -7, -11, -13, -17, -19, -23]],
        [1, 1, 1, 1, -5, -5, -11, -11],
    ),
    2: (
        [[1, -1, -3, -5, -15, -17, -27, -29], [1, -3, -7, -11, -19, -23, -31, -35]],
        [1, 1, 1, 1, -11, -11, -23, -23],
    ),
}


@pytest.mark.parametrize("overlap", ["round", 2])
@pytest.mark.parametrize("rate", LATE)
def test_a_mean_one_round_late_has_the_trajectory_computed_by_hand(rate, overlap):
    weights: dict[int, list[float]] = {0: [], 1: []}
    anchors: dict[int, list[float]] = {0: [], 1: []}

    def trajectory(rank: int, network: nn.Module, optimizer: Any) -> None:
        for _ in range(8):
            weights[rank].append(float(network.weight.detach()))
            anchors[rank].append(float(anchor_of(network, optimizer)))
            network.weight.grad = torch.full((1,), 2.0 + 2.0 * rank)
            optimizer.step()

    replicas(
        2, "sgd", trajectory, lambda network: SGD(network.parameters(), lr=1.0), Weight,
        every=2, overlap=overlap, outer=f"sgd(lr={rate})",
    )  # fmt: skip
    assert [weights[0], weights[1]] == LATE[rate][0]
    assert anchors[0] == anchors[1] == LATE[rate][1]


@pytest.mark.parametrize("make", [plain_sgd, adamw])
def test_one_worker_one_round_late_is_plain_training_bit_for_bit(make):
    [network], [wrapped] = replicas(
        1, "sgd", steps(1, 20), make, every=3, overlap="round", outer=PLAIN
    )
    plain = model()
    steps(1, 20)(0, plain, make(plain))
    assert flat(network).equal(flat(plain))
    assert not anchor_of(network, wrapped).equal(flat(plain))  # the anchor is a round behind


def test_every_is_a_number_or_a_schedule():
    assert str(Rounds("12")) == str(Rounds(12)) == "every=12, fragments=1, overlap=0"
    assert Rounds("0: 1; 6: 3").phases == Rounds({0: 1, 6: 3}).phases
    assert str(Rounds({0: 2, 4: 6}, 2)) == "every=0: 2; 4: 6, fragments=2, overlap=0"
    ends = [Rounds({0: 2, 4: 6}, 2, overlap=0).ends(step) for step in range(1, 17)]
    assert ends == [0, 1, 0, 1, None, None, 0, None, None, 1, None, None, 0, None, None, 1]


@pytest.mark.slow
def test_post_local_sgd_averages_each_of_the_first_steps_and_then_some():
    """Against averages of weights in float64; the first steps are data-parallel SGD."""
    networks, optimizers = replicas(
        2, None, steps(2, 14), momentum_sgd, recipe="post-local", every={0: 1, 4: 5}
    )
    replicated = [copy.deepcopy(model()).double() for _ in range(2)]
    inner = [momentum_sgd(network) for network in replicated]
    for step in range(14):
        for rank, network in enumerate(replicated):
            images, labels = batch(step)
            inner[rank].zero_grad()
            cross_entropy(network(images[rank::2].double()), labels[rank::2]).backward()
            inner[rank].step()
        if step + 1 in (1, 2, 3, 4, 9, 14):
            mean = torch.stack([flat(network) for network in replicated]).mean(0)
            for network in replicated:
                nn.utils.vector_to_parameters(mean.clone(), network.parameters())
    for network, reference in zip(networks, replicated, strict=True):
        torch.testing.assert_close(flat(network).double(), flat(reference), rtol=1e-4, atol=1e-6)
    assert optimizers[0].exchange.stats.steps == 6


def momentum_sgd(network: nn.Module) -> torch.optim.Optimizer:
    return SGD(network.parameters(), lr=0.05, momentum=0.9)


def test_fragments_by_name_are_exchanged_in_their_order():
    changed: list[list[str]] = []

    def body(rank: int, network: nn.Module, optimizer: Any) -> None:
        for step in range(4):
            before = {n: p.detach().clone() for n, p in anchored(network, optimizer).items()}
            one_step(rank, 2, step, network, optimizer)
            after = anchored(network, optimizer)
            if rank == 0:
                changed.append([n for n in after if not after[n].equal(before[n])])

    replicas(2, "sgd", body, every=4, fragments=[["*.bias"], ["0.*", "2.weight"]])
    assert changed == [[], ["0.bias", "2.bias"], [], ["0.weight", "2.weight"]]


def anchored(network: nn.Module, optimizer: Any) -> dict[str, Tensor]:
    with optimizer.anchor():
        return {name: p.detach().clone() for name, p in network.named_parameters()}


@pytest.mark.slow(cases=("momentum_sgd",))
@pytest.mark.parametrize("make", [momentum_sgd, adamw])
def test_a_gathered_state_has_the_moments_of_every_rank(make):
    """At the end of a round nothing is lost: the same number of ranks continues bit for bit."""
    gathered: list[Any] = []
    moments: dict[int, Any] = {}

    def save(rank: int, network: nn.Module, optimizer: Any) -> None:
        steps(2, 6)(rank, network, optimizer)
        moments[rank] = copy.deepcopy(optimizer.optimizer.state_dict()["state"])
        gathered.extend([copy.deepcopy(state)] if (state := optimizer.gather()) else [])
        steps(2, 11, 6)(rank, network, optimizer)

    def load(rank: int, network: nn.Module, optimizer: Any) -> None:
        optimizer.load_state_dict(copy.deepcopy(gathered[0]))
        own, saved = optimizer.optimizer.state_dict()["state"], moments[rank % 2]
        assert own.keys() == saved.keys()
        for number, entries in own.items():
            for name, value in entries.items():
                assert torch.equal(torch.as_tensor(value), torch.as_tensor(saved[number][name]))
        steps(2, 11, 6)(rank % 2, network, optimizer)

    whole, _ = replicas(2, "topk(ratio=0.2)", save, make, every=3)
    again, _ = replicas(2, "topk(ratio=0.2)", load, make, every=3)
    assert all(flat(again[rank]).equal(flat(whole[rank])) for rank in range(2))
    replicas(3, "topk(ratio=0.2)", load, make, every=3)


def test_several_optimizers_step_as_one():
    def build(network: nn.Module) -> list[torch.optim.Optimizer]:
        layers: Any = network
        return [
            SGD(layers[0].parameters(), lr=0.1, momentum=0.9),
            AdamW(layers[2].parameters(), lr=0.01),
        ]

    single, apart = model(), model()
    wrapped = atomo.local_steps(single, build(single), "sgd", every=4, outer=PLAIN)
    several = build(apart)
    for step in range(6):
        one_step(0, 1, step, single, wrapped)
        images, labels = batch(step)
        cross_entropy(apart(images), labels).backward()
        for optimizer in several:
            optimizer.step()
            optimizer.zero_grad()
        if step == 2:
            saved = copy.deepcopy((single.state_dict(), wrapped.state_dict()))
    assert flat(single).equal(flat(apart))
    other = model()
    resumed = atomo.local_steps(other, build(other), "sgd", every=4, outer=PLAIN)
    other.load_state_dict(saved[0])
    resumed.load_state_dict(saved[1])
    resumed.param_groups[1]["lr"] = 0.01
    steps(1, 6, 3)(0, other, resumed)
    assert flat(other).equal(flat(single))
    with pytest.raises(ConfigError, match="two of the optimizers step one parameter"):
        atomo.local_steps(other, [plain_sgd(other), adamw(other)], "sgd")
    with pytest.raises(CheckpointError, match="1 parameter groups, and these optimizers have 2"):
        resumed.optimizer.load_state_dict(plain_sgd(other).state_dict())
