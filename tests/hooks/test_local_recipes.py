"""Recipes with local steps, and the two that have rules of their own against references."""

from typing import Any

import pytest
import torch
from hooks.local_ranks import anchor_of, one_step, replicas, steps
from hooks.loops import batch, flat, model
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Optimizer

from atomo.exchange.outer.rotation import rotate, unrotate
from atomo.hooks.local.config import local_config
from atomo.options.local_recipes import LOCAL_RECIPES

SHORT: dict[str, dict[str, Any]] = {
    "diloco": {"every": 4},
    "streaming-diloco": {"every": 6},
    "sparseloco": {"every": 4},
    "muloco": {"every": 4},
    "post-local": {"every": "0: 1; 4: 4"},
    "demo": {},
    "sparta": {},
}


def slow_sgd(network: nn.Module) -> Optimizer:
    return SGD(network.parameters(), lr=0.01)


@pytest.mark.slow(cases=("demo", "muloco", "post-local", "streaming"))
@pytest.mark.parametrize("name", LOCAL_RECIPES)
def test_a_recipe_trains_with_one_anchor_on_all_ranks(name):
    networks, optimizers = replicas(
        2, None, steps(2, 12), slow_sgd, recipe=name.upper(), **SHORT[name]
    )
    first, second = map(anchor_of, networks, optimizers)
    assert first.equal(second)
    assert not first.equal(flat(model()))


def test_options_that_are_given_go_before_those_of_the_recipe():
    config = local_config(None, {"recipe": "sparseloco"})
    assert (config.rounds.every, config.hook.memory_spec) == (30, "residual(beta=0.95)")
    assert str(config.outer) == "sgd(lr=1.0, momentum=0.0, nesterov=no)"
    config = local_config("topk", {"recipe": "sparseloco", "every": 15, "outer_mean": "senders"})
    assert (config.rounds.every, str(config.hook.codec)) == (15, "topk")
    assert (config.hook.mean, config.hook.memory_spec) == ("senders", "residual(beta=0.95)")


@pytest.mark.parametrize("name", LOCAL_RECIPES)
def test_the_test_of_recipes_has_all(name):
    assert name in SHORT


RATE, DECAY, SHARE, WEIGHT_DECAY = 0.02, 0.9, 0.25, 0.1


@pytest.mark.slow
def test_demo_is_the_reference_of_its_paper():
    """Momentum by worker, top coefficients, the mean over senders, and a step by its sign."""
    size, count = 3, 6
    weights: list[list[Tensor]] = [[p.detach().double() for p in model().parameters()]]

    def body(rank: int, network: nn.Module, optimizer: Any) -> None:
        for step in range(count):
            one_step(rank, size, step, network, optimizer)
            if rank == 0:
                weights.append([p.detach().double() for p in network.parameters()])

    replicas(
        size, f"tiletopk(ratio={SHARE})", body, lambda n: SGD(n.parameters(), lr=RATE),
        recipe="demo", memory=f"residual(decay={DECAY})",
        outer=f"sign(weight_decay={WEIGHT_DECAY})",
    )  # fmt: skip
    momenta = [[torch.zeros_like(p) for p in weights[0]] for _ in range(size)]
    for step in range(count):
        sent = [
            sent_coefficients(weights[step], momenta[rank], step, rank, size)
            for rank in range(size)
        ]
        for number, before in enumerate(weights[step]):
            total = torch.stack([coefficients[number] for coefficients in sent])
            mean = total.sum(0) / total.ne(0).sum(0).clamp_min(1)
            expected = before * (1 - RATE * WEIGHT_DECAY) - RATE * unrotate(mean).sign()
            torch.testing.assert_close(weights[step + 1][number], expected, rtol=0, atol=1e-5)


def sent_coefficients(
    weights: list[Tensor], momenta: list[Tensor], step: int, rank: int, size: int
) -> list[Tensor]:
    """Returns the coefficients that a worker sends, and takes them from its momentum."""
    network = model()
    nn.utils.vector_to_parameters(
        torch.cat([w.float().flatten() for w in weights]), network.parameters()
    )
    images, labels = batch(step)
    cross_entropy(network(images[rank::size]), labels[rank::size]).backward()
    sent = []
    for parameter, momentum in zip(network.parameters(), momenta, strict=True):
        assert parameter.grad is not None
        momentum.mul_(DECAY).add_(parameter.grad.double(), alpha=RATE)
        coefficients = rotate(momentum).flatten().double()
        # Small vectors are sent whole.
        k = max(1, round((SHARE if parameter.ndim > 1 else 1.0) * coefficients.numel()))
        chosen = coefficients.abs().topk(k).indices
        kept = torch.zeros_like(coefficients).index_copy(0, chosen, coefficients[chosen])
        sent.append(kept.view(parameter.shape))
        momentum.sub_(unrotate(sent[-1]).double())
    return sent


VECTORS = [*range(128, 144), *range(192, 195)]  # the entries of biases


def test_sparta_averages_the_same_few_weights_on_all_ranks():
    size, count, share = 2, 8, 0.1
    trained: dict[int, list[Tensor]] = {rank: [] for rank in range(size)}
    after: dict[int, list[Tensor]] = {rank: [] for rank in range(size)}

    def body(rank: int, network: nn.Module, optimizer: Any) -> None:
        optimizer.optimizer.register_step_post_hook(lambda *_: trained[rank].append(flat(network)))
        for step in range(count):
            one_step(rank, size, step, network, optimizer)
            after[rank].append(flat(network))

    replicas(
        size, f"randk(ratio={share}, unbiased=False)", body, slow_sgd, recipe="sparta",
        bucket_mb=4.0,
    )  # fmt: skip
    places = []
    for step in range(count):
        own = torch.stack([trained[rank][step] for rank in range(size)])
        now = torch.stack([after[rank][step] for rank in range(size)])
        averaged = now.ne(own).any(0)
        torch.testing.assert_close(now[:, averaged], own.mean(0)[averaged].expand(size, -1))
        assert now[0, averaged].equal(now[1, averaged])
        places.append(averaged)
        assert int(averaged[VECTORS].sum()) == len(VECTORS)  # small vectors are sent whole
        assert int(averaged.sum()) - len(VECTORS) == round(share * 128) + round(share * 48)
    assert not all(places[0].equal(other) for other in places)
    assert not after[0][-1].equal(after[1][-1])
