"""Memory objects in the place of their names."""

from functools import partial
from typing import Any

import pytest
import torch
from hooks.loops import batch, flat, model, on_ranks
from hooks.ranks import alone
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

import atomo
from atomo.errors import ConfigError
from atomo.hooks.attachment import HookAttachment
from atomo.hooks.options.hook_config import HookConfig
from atomo.hooks.options.resolve import config_of
from atomo.memory import Memory, canonical_memory, make_memory

SPECS = [
    "none", "residual", "residual(beta=0.9, gamma=0.5, units=update)", "dgc",
    "dgc(masking=False, clip=6.0)", "momentum", "momentum(beta=0.5)",
]  # fmt: skip


def heavy(network: nn.Module) -> torch.optim.Optimizer:
    return SGD(network.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)


def plain(network: nn.Module) -> torch.optim.Optimizer:
    return SGD(network.parameters(), lr=0.05)


def config(code: str, memory: str | Memory, momentum: float = 0.0) -> HookConfig:
    return config_of(code, {"memory": memory, "momentum": momentum})


def steps(rank: int, network: nn.Module, optimizer: Any) -> None:
    for step in range(4):
        images, labels = batch(step)
        optimizer.zero_grad()
        cross_entropy(network(images[rank::2]), labels[rank::2]).backward()
        optimizer.step()


@pytest.mark.parametrize("spec", SPECS)
def test_a_memory_has_the_specification_that_makes_it(spec):
    assert make_memory(spec).spec == canonical_memory(spec)


@pytest.mark.slow(cases=("dgc(",))
@pytest.mark.parametrize("spec", ["residual(beta=0.9)", "dgc(masking=False)", "dgc(clip=0.1)"])
def test_an_object_is_as_good_as_its_name(spec):
    code = "topk(ratio=0.2)"
    own = [make_memory(spec, 0.9, workers=2) for _ in range(2)]
    each = [{"memory": memory} for memory in own]
    make = heavy if own[0].has_momentum else plain
    named, _ = on_ranks(2, code, steps, make, dense_below=1, memory=spec)
    given, made = on_ranks(2, code, steps, make, lambda rank: each[rank], dense_below=1)
    assert flat(given[0]).equal(flat(named[0]))
    kept = made[0].exchange.state_dict()["memories"]["0"]
    assert kept
    for name, part in own[0].state_dict().items():
        assert part.equal(kept[name])


def test_an_object_of_no_known_number_of_workers_takes_that_of_the_hook():
    """Checks Nesterov momentum, of which the mean of several workers keeps more."""
    own = [make_memory("dgc", 0.9, nesterov=True) for _ in range(2)]

    def optimizer(network: nn.Module) -> torch.optim.Optimizer:
        return SGD(network.parameters(), lr=0.05, momentum=0.9, nesterov=True)

    train = partial(on_ranks, 2, "efsignsgd", steps, optimizer, dense_below=1)
    named, _ = train(memory="dgc")
    given, _ = train(lambda rank: {"memory": own[rank]})
    assert flat(given[0]).equal(flat(named[0]))


def test_its_momentum_is_what_the_hook_is_given():
    taken = config("topk", make_memory("dgc", 0.8, True))
    assert (taken.momentum, taken.nesterov) == (0.8, True)
    assert config("topk", make_memory("dgc"), 0.9).momentum == 0.9
    with pytest.raises(ConfigError, match=r"made with momentum=0\.9, .* and the hook"):
        config("topk", make_memory("dgc"), 0.8)
    with pytest.raises(ConfigError, match="memory residual with topk applies none of it"):
        config("topk", make_memory("residual"), 0.9).check()


@pytest.mark.parametrize(
    ("spec", "momentum", "words"),
    [
        ("dgc", 0.8, "made with momentum=0.8, nesterov=False, and the optimizer has momentum=0.9"),
        ("dgc(clip=1.0)", 0.9, "clips for workers=3, and 1 average: give workers=1"),
        ("momentum(beta=0.5)", 0.9, "made with momentum=0.5, .* and the optimizer has momentum=0"),
    ],
)
def test_what_the_object_was_not_made_for_is_refused(spec, momentum, words):
    with alone():
        ddp = DistributedDataParallel(model())
        optimizer, memory = heavy(ddp), make_memory(spec, momentum, workers=3)
        with pytest.raises(ConfigError, match=words):
            atomo.ddp_hook(ddp, "topk", memory=memory, optimizer=optimizer)
    assert optimizer.param_groups[0]["momentum"] == 0.9


def test_an_object_is_new_and_of_one_hook():
    full = make_memory("residual")
    full.load_state_dict({"weight": torch.ones(3)})
    with pytest.raises(ConfigError, match="memory residual is not empty, and a hook begins"):
        config("topk", full).check()
    with alone():
        ddp, memory = DistributedDataParallel(model()), make_memory("residual")
        atomo.ddp_hook(ddp, "topk", memory=memory)
        with pytest.raises(ConfigError, match="memory residual already serves another hook"):
            atomo.ddp_hook(ddp, "topk", memory=memory)


def test_ranks_compare_the_objects():
    def run(rank: int) -> dict[str, Any]:
        return {"memory": make_memory("residual", 0.9) if rank else make_memory("dgc", 0.9)}

    with pytest.raises(ConfigError, match="memory residual, rank 0 dgc"):
        on_ranks(2, "topk", steps, heavy, run)


def test_a_model_that_is_wrapped_anew_goes_on():
    network, memory = model(), make_memory("dgc")
    plug = HookAttachment(config("topk(ratio=0.2)", memory), None)
    images, labels = batch(0)
    with alone():
        ddp = DistributedDataParallel(network)
        plug.attach(ddp, None)
        cross_entropy(ddp(images), labels).backward()
        plug.attach(DistributedDataParallel(network), None)
        [exchange] = plug.exchanges
        again = exchange.state_dict()["memories"]["0"]
        assert again
        assert all(part.equal(again[name]) for name, part in memory.state_dict().items())
        with pytest.raises(ConfigError, match="already serves another hook"):
            plug.attach(DistributedDataParallel(model()), None)
