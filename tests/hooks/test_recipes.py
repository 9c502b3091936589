"""Recipes and warm-ups of the ratio in hooks."""

from typing import Any

import pytest
import torch
from hooks.loops import batch, flat, model, on_ranks
from hooks.ranks import alone
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Adam

import atomo
from atomo.errors import ConfigError
from atomo.hooks.attachment import HookAttachment
from atomo.hooks.options.hook_config import HookConfig
from atomo.hooks.options.resolve import config_of
from atomo.options.recipes import RECIPES

SPELLED = "1: dgc(ratio=0.063); 2: dgc(ratio=0.015); 3: dgc(ratio=0.004); 4: dgc"


def nesterov(network: nn.Module) -> torch.optim.Optimizer:
    return SGD(network.parameters(), lr=0.05, momentum=0.9, nesterov=True)


def coded(
    code: str | None = None, schedule: str = "", recipe: str = "", **given: int
) -> HookConfig:
    options: Any = {"code_schedule": schedule, "recipe": recipe} | given
    return config_of(code, options)


def steps(rank: int, network: nn.Module, optimizer: Any) -> None:
    for step in range(6):
        images, labels = batch(step)
        optimizer.zero_grad()
        cross_entropy(network(images[rank::2]), labels[rank::2]).backward()
        optimizer.step()


@pytest.mark.slow
def test_a_recipe_is_what_it_stands_for():
    recipe: dict[str, Any] = {"recipe": "DGC", "steps_per_epoch": 1}
    code: Any = None
    networks, made = on_ranks(2, code, steps, nesterov, dense_below=1, **recipe)
    first = "dgc(ratio=0.25)"
    same, _ = on_ranks(2, first, steps, nesterov, dense_below=1, code_schedule=SPELLED)
    assert flat(networks[0]).equal(flat(same[0]))
    assert "from step 4 dgc, memory dgc with momentum 0.9 of Nesterov" in repr(made[0].exchange)


def test_ddp_takes_a_recipe_and_its_momentum_moves():
    with alone():
        ddp = DistributedDataParallel(model())
        optimizer = nesterov(ddp)
        state, _ = atomo.ddp_hook(ddp, recipe="dgc", steps_per_epoch=100, optimizer=optimizer)
    assert "from step 100 dgc(ratio=0.063); from step 200" in repr(state)
    assert not optimizer.param_groups[0]["momentum"]


@pytest.mark.parametrize("recipe", [name for name in RECIPES if name != "dgc"])
def test_a_recipe_without_a_schedule_needs_no_epochs(recipe):
    config = coded(recipe=recipe)
    config.check()
    assert str(config.codec) == str(HookConfig(RECIPES[recipe].settings["code"]).codec)


def test_what_is_given_goes_before_a_recipe():
    assert coded(recipe="efsignsgd").memory_spec == "residual(units=update)"
    assert config_of(None, {"memory": "none", "recipe": "efsignsgd"}).memory_spec == "none"
    assert coded(recipe="dgc", warmup_steps=40).phases[0].epoch == 10


def test_a_warm_up_has_four_stages():
    config = coded("topk(ratio=0.00001)", warmup_steps=1000)
    assert str(config.codec) == "topk(ratio=0.1)"
    assert config.settings["code_schedule"] == (
        "250: topk; 500: topk(ratio=0.001); 750: topk(ratio=0.0001); 1000: topk(ratio=1e-05)"
    )


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, r"give a code, such as 'topk\(ratio=0.01\)', or a recipe, such as 'dgc'"),
        ({"recipe": "dcg"}, "unknown recipe 'dcg'; .*dgc"),
        ({"recipe": "dgc"}, "recipe dgc has a schedule of epochs: give steps_per_epoch"),
        ({"recipe": "dgc", "code": "topk"}, "has a code of its own, and topk is given: give one"),
        ({"recipe": "topk", "schedule": "3: sgd"}, "code_schedule and recipe='topk' both say"),
        ({"code": "topk", "schedule": "3: sgd", "warmup_steps": 8}, "and warmup_steps=8 both say"),
        ({"code": "topk", "steps_per_epoch": 5}, "steps_per_epoch=5 is for a recipe, and none"),
        ({"recipe": "dgc", "steps_per_epoch": -1}, "must be a whole number from 0, got -1"),
        ({"code": "topk", "warmup_steps": 3}, "must be 0, or 4 and more: one a stage, got 3"),
        ({"code": "qsgd", "warmup_steps": 8}, "for a codec with a ratio, such as topk, not qsgd"),
        ({"code": "chunked", "warmup_steps": 8}, "such as topk, not Chunked"),
    ],
)
def test_settings_that_cannot_be_are_refused(given, words):
    with pytest.raises(ConfigError, match=words):
        coded(**given)


@pytest.mark.parametrize(
    ("recipe", "make", "words"),
    [
        ("dgc", {"momentum": 0.5}, "has momentum=0.9, nesterov=True, and the optimizer has "
         "momentum=0.5, nesterov=False: give optimizer=SGD"),
        ("topk", {"momentum": 0.9}, "has momentum=0, nesterov=False, and the optimizer has "
         "momentum=0.9, nesterov=False"),
        ("dgc", None, "and without an SGD the hook has momentum=0, nesterov=False"),
    ],
)  # fmt: skip
def test_momentum_that_is_not_the_recipes_is_refused(recipe, make, words):
    network = model()
    optimizer = SGD(network.parameters(), **make) if make else Adam(network.parameters())
    with alone():
        ddp = DistributedDataParallel(network)
        given: dict[str, Any] = {"recipe": recipe, "steps_per_epoch": 10}
        with pytest.raises(ConfigError, match=words):
            atomo.ddp_hook(ddp, optimizer=optimizer, **given)
        with pytest.raises(ConfigError, match=words):
            HookAttachment(coded(**given), None).attach(ddp, None, [optimizer])  # of frameworks
        with pytest.raises(ConfigError, match=words):
            atomo.wrap_optimizer(optimizer, network, **given)
    assert not make or optimizer.param_groups[0]["momentum"] == make["momentum"]


def test_the_hook_may_be_given_the_momentum_of_the_recipe():
    with alone():
        ddp = DistributedDataParallel(model())
        state, _ = atomo.ddp_hook(
            ddp, recipe="dgc", steps_per_epoch=10, momentum=0.9, nesterov=True
        )
    assert "momentum 0.9 of Nesterov" in repr(state)


def test_a_second_hook_on_a_sharded_model_is_refused():
    with alone():
        mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("replicate", "shard"))
        network = model()
        fully_shard(network, mesh=mesh["shard"])
        atomo.fsdp_hook(network, None, mesh["replicate"], recipe="natural")
        with pytest.raises(ConfigError, match="has an fsdp_hook already: give one"):
            atomo.fsdp_hook(network, "natural", mesh["replicate"])
