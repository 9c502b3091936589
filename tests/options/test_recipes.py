"""Recipes are settings that run, and flags go before them."""

from pathlib import Path

import pytest

import atomo
from atomo.codecs import CODECS, make_codec
from atomo.config.settings import Settings
from atomo.core.arguments import parse_arguments, to_arguments
from atomo.errors import ConfigError
from atomo.hooks.options.hook_options import DEFAULTS
from atomo.hooks.options.resolve import config_of
from atomo.options.local_recipes import LOCAL_RECIPES, RUN_RECIPES
from atomo.options.outer import parse_outer
from atomo.options.recipes import RECIPES


def read(*words: str) -> Settings:
    return parse_arguments(Settings, words, "train", "", Settings.from_recipe).resolved()


@pytest.mark.parametrize("name", RUN_RECIPES)
def test_every_recipe_is_settings_that_a_rank_reads_back(name):
    chosen = read(f"--recipe={name}")
    assert not chosen.recipe
    assert read(*to_arguments(chosen)) == chosen


@pytest.mark.parametrize("name", LOCAL_RECIPES)
def test_a_recipe_of_local_steps_has_the_same_method_in_runs(name):
    chosen, local = read(f"--recipe={name}"), LOCAL_RECIPES[name].settings
    assert (chosen.code, chosen.optimizer) == (str(make_codec(local["code"])), local["optimizer"])
    assert chosen.outer == str(parse_outer(local["outer"]))
    assert chosen.has_local_steps
    assert read(f"--recipe={name}", "--local-steps=1", "--lr=0.1").lr == 0.1


def test_every_published_codec_has_a_recipe():
    served = {make_codec(one.settings["code"]).id for one in RECIPES.values()}
    # These are ours, or stand for no paper's settings.
    apart = {
        "bf16",
        "entrywise",
        "fourier",
        "atomo",
        "countsketch",
        "threshold",
        "chunktopk",
        "tiletopk",
        "lloydmax",
        "rows",
    }
    assert served | apart == set(CODECS)


def test_dgc_comes_with_its_memory_its_momentum_and_its_warm_up():
    chosen = read("--recipe=DGC")
    assert (chosen.memory, chosen.nesterov, chosen.momentum) == ("dgc", True, 0.9)
    assert chosen.code_schedule.startswith("0: dgc(ratio=0.25); 1: dgc(ratio=0.063)")
    assert chosen.code_schedule.endswith("4: dgc(ratio=0.001)")


def test_flags_go_before_a_recipe_also_where_they_say_the_default():
    chosen = read("--recipe=dgc", "--nesterov=no", "--code=topk", "--lr=0.5")
    assert not chosen.nesterov
    assert chosen.code == "topk"
    assert chosen.lr == 0.5
    assert read(*to_arguments(chosen)) == chosen


@pytest.mark.parametrize(
    ("words", "code", "schedule", "memory"),
    [
        ("--recipe=dgc --code=svd", "svd", "", "none"),
        ("--recipe=dgc --code=dgc(ratio=0.01)", "dgc(ratio=0.01)", "", "dgc"),
        ("--recipe=dgc --compress-ratio=0.01", "dgc(ratio=0.01)", "", "dgc"),
        ("--recipe=dgc --code-schedule=", "dgc", "", "dgc"),
        ("--recipe=dgc --warmup-epochs=1", "dgc", "0: dgc(ratio=0.0316228); 1: dgc", "dgc"),
        ("--recipe=dgc --code=auto", "auto", "", "auto"),
        ("--recipe=efsignsgd --code=svd", "svd", "", "none"),
        ("--recipe=efsignsgd --code=EFsignSGD", "efsignsgd", "", "residual(units=update)"),
        ("--recipe=qsgd-4bit --quantization-level=8", "qsgd(bits=8)", "", "none"),
    ],
)
def test_what_belongs_to_a_recipes_codec_goes_with_it(words, code, schedule, memory):
    chosen = read(*words.split())
    assert chosen.code == code
    assert chosen.code_schedule == schedule
    assert chosen.memory == memory
    assert read(*to_arguments(chosen)) == chosen


def test_an_unknown_recipe_gets_the_nearest():
    with pytest.raises(ConfigError, match=r"unknown recipe 'sparto'; did you mean 'sparta'\?"):
        Settings.from_recipe("sparto")
    with pytest.raises(ConfigError, match=r"unknown recipe 'dgs'; did you mean 'dgc'\?"):
        read("--recipe=dgs")
    with pytest.raises(ConfigError, match=r"Settings\.from_recipe"):
        Settings(recipe="dgc")


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [
        ("onebit-adam", "onebit_adam"),
        ("1-bit-Adam", "onebit_adam"),
        ("ZeroOneAdam", "zero_one_adam"),
        ("0/1-adam", "zero_one_adam"),
        ("onebit_lamb", "onebit_lamb"),
    ],
)
def test_a_method_that_is_an_optimizer_is_named(name, optimizer):
    message = rf"recipe '{name}' is an optimizer and no recipe: call `atomo\.{optimizer}`"
    assert optimizer in atomo.__all__
    with pytest.raises(ConfigError, match=message):
        read(f"--recipe={name}")
    with pytest.raises(ConfigError, match=message):
        config_of(None, {**DEFAULTS, "recipe": name})


def test_warm_up_epochs_become_a_schedule():
    chosen = read("--code=topk", "--compress-ratio=0.001", "--warmup-epochs=2")
    assert chosen.code_schedule == "0: topk(ratio=0.1); 1: topk; 2: topk(ratio=0.001)"
    assert chosen.code == "topk(ratio=0.001)"
    assert read(*to_arguments(chosen)) == chosen


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--code=svd --warmup-epochs=2", "codec svd has no ratio"),
        ("--code=topk --warmup-epochs=2 --code-schedule=1:sgd", "give one"),
        ("--warmup-epochs=-1", "--warmup-epochs must be at least 0, got -1"),
        ("--code=topk --compress-ratio=1.5", "--compress-ratio must be at most 1, got 1.5"),
        ("--code=topk --compress-ratio=nan", "--compress-ratio must be above 0, got nan"),
    ],
)
def test_a_bad_ratio_or_warm_up_is_named(words, message):
    with pytest.raises(ConfigError, match=message):
        read(*words.split())


def test_the_documentation_has_every_recipe():
    text = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text()
    for name, one in RECIPES.items():
        row = next(line for line in text.splitlines() if line.startswith(f"| `{name}` | `--"))
        assert one.settings["code"] in row
        assert one.paper in row
