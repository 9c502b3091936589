"""The keyword options of hooks: one list for help, editors, documentation and checks."""

import inspect
import re
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from torch import nn
from torch.optim import SGD

import atomo
from atomo.errors import ConfigError
from atomo.hooks.options.hook_options import (
    DEFAULTS,
    LOCAL_DEFAULTS,
    FSDPHookOptions,
    OptimizerOptions,
)
from atomo.memory import Residual

TYPES = get_type_hints(atomo.HookOptions)
OWN = {
    "ddp_hook": {"optimizer", "process_group", "scaler"},
    "accelerate_hook": {"optimizer"},
    "trainer_hook": set(),
    "lightning_callback": set(),
    "fsdp_hook": {"optimizer", "reduce_scatter"},
    "wrap_optimizer": {"bucket_mb", "scaler", "collective"},
}
MISSING = {
    "fsdp_hook": {"hierarchical", "noise_damping"},
    "wrap_optimizer": {"momentum", "nesterov"},
}
PAGE = Path(__file__).parents[3] / "docs" / "ddp.md"


@pytest.mark.parametrize("name", OWN)
def test_a_signature_lists_every_option_with_its_type_and_default(name):
    parameters = inspect.signature(getattr(atomo, name)).parameters
    keywords = {p.name: p for p in parameters.values() if p.kind is p.KEYWORD_ONLY}
    assert set(keywords) == TYPES.keys() - MISSING.get(name, set()) | OWN[name]
    assert not any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    defaults = {**DEFAULTS, "timeout_s": 300.0} if name == "wrap_optimizer" else {**DEFAULTS}
    for option in keywords.keys() - OWN[name]:
        assert keywords[option].default == defaults[option]
        assert keywords[option].annotation == TYPES[option]


@pytest.mark.parametrize("name", OWN)
def test_an_unknown_keyword_names_the_nearest_option(name):
    words = rf"{name}\(\) got an unexpected keyword argument 'dense_bellow'; did you mean 'dense_b"
    with pytest.raises(TypeError, match=words):
        getattr(atomo, name)(dense_bellow=3)


@pytest.mark.parametrize(
    ("name", "option"), [(name, option) for name in MISSING for option in sorted(MISSING[name])]
)
def test_an_option_of_other_hooks_is_unknown(name, option):
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{option}'"):
        getattr(atomo, name)(**{option: DEFAULTS[option]})


WRONG: list[tuple[str, Any, str]] = [
    ("memory", Residual, "must be one of atomo.make_memory, or a name with its settings, one of"),
    ("memory", None, "must be one of atomo.make_memory, or a name with its settings, one of auto, "
     "none, residual, dgc, momentum, adam, got None"),
    ("momentum", "0.9", "must be a number, got '0.9' of type str"),
    ("momentum", True, "must be a number, got True"),
    ("nesterov", 1, "must be True or False, got 1"),
    ("code_schedule", ["9: topk"], "must be text such as '1000: topk(ratio=0.01)', got ['9: topk'"),
    ("recipe", 3, "must be a name, one of sgd, "),
    ("steps_per_epoch", True, "must be a whole number from 0, got True"),
    ("warmup_steps", 1.5, "must be a whole number from 0, got 1.5"),
    ("dense_below", -1, "must be a whole number from 0, got -1"),
    ("dense_steps", "9", "must be a whole number from 0, got '9' of type str"),
    ("hierarchical", True, "must be 'yes' (hosts by their names), 'no', or how many ranks"),
    ("noise_damping", "yes", "must be True, False or None, got 'yes'"),
    ("seed", None, "must be a whole number, got None"),
    ("seed", 1.0, "must be a whole number, got 1.0"),
    ("compression", "lz4", "must be an atomo.Compression or None, got 'lz4'"),
    ("timeout_s", "5 min", "must be a number of seconds, got '5 min'"),
    ("timeout_s", 0, "must be above 0 and finite, got 0"),
]  # fmt: skip


@pytest.mark.parametrize(("option", "value", "words"), WRONG)
def test_a_value_of_another_type_is_refused_by_name(option, value, words):
    expected = pytest.raises(ConfigError, match=re.escape(f"{option} {words}"))
    with expected:
        atomo.lightning_callback("topk", **{option: value})
    if option in get_type_hints(OptimizerOptions):
        network = nn.Linear(2, 2)
        with expected:
            atomo.wrap_optimizer(
                SGD(network.parameters(), lr=0.1), network, "topk", **{option: value}
            )


def test_every_option_is_checked_and_documented():
    assert {option for option, _, _ in WRONG} == set(DEFAULTS) == set(TYPES)
    attributes = inspect.cleandoc(str(atomo.HookOptions.__doc__)).partition("Attributes:")[2]
    documented = re.findall(r"^ {4}(\w+): ", attributes, re.M)
    assert documented == list(DEFAULTS)


def test_the_page_has_a_row_for_each_option_with_its_default():
    rows = dict(re.findall(r"^\| `(\w+)` \| `([^`]*)` \|", PAGE.read_text(), re.M))
    assert rows == {name: format_default(default) for name, default in DEFAULTS.items()}


def format_default(default: object) -> str:
    return f'"{default}"' if isinstance(default, str) else repr(default)


LOCAL_OWN = {
    "local_steps": {"process_group", "collective", "replicas"},
    "accelerate_local_steps": set(),
    "trainer_local_steps": set(),
    "lightning_local_steps": set(),
}
LOCAL_PAGE = PAGE.with_name("local-steps.md")


@pytest.mark.parametrize("name", LOCAL_OWN)
def test_a_signature_lists_every_option_of_local_steps(name):
    types = get_type_hints(atomo.LocalStepsOptions)
    parameters = inspect.signature(getattr(atomo, name)).parameters
    keywords = {p.name: p for p in parameters.values() if p.kind is p.KEYWORD_ONLY}
    assert set(keywords) == types.keys() | LOCAL_OWN[name]
    for option in types:
        assert keywords[option].default == {**DEFAULTS, **LOCAL_DEFAULTS}[option]
        assert keywords[option].annotation == types[option]
    with pytest.raises(TypeError, match="unexpected keyword argument 'noise_damping'"):
        getattr(atomo, name)(noise_damping=True)


def test_options_of_local_steps_are_documented_with_their_defaults():
    attributes = inspect.cleandoc(str(atomo.LocalStepsOptions.__doc__)).partition("Attributes:")[2]
    own = LOCAL_DEFAULTS.keys() - {"timeout_s"} | {"recipe"}
    assert set(re.findall(r"^ {4}(\w+): ", attributes, re.M)) == own
    rows = dict(re.findall(r"^\| `(\w+)` \| `([^`]*)` \|", LOCAL_PAGE.read_text(), re.M))
    defaults = {**DEFAULTS, **LOCAL_DEFAULTS}
    assert {name: rows[name] for name in own} == {n: format_default(defaults[n]) for n in own}


def test_options_of_one_function_are_options_of_hooks():
    for kind in (FSDPHookOptions, OptimizerOptions):
        assert get_type_hints(kind).items() <= TYPES.items()
