"""The configuration of a hook from its options. Recipes and warm-ups become codec schedules."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from atomo.codecs import Codec
from atomo.errors import ConfigError
from atomo.hooks.adapter.chunks import DensePolicy
from atomo.hooks.code_spec import parse_code
from atomo.hooks.options.checks import check_options, host_rule
from atomo.hooks.options.hook_config import HookConfig
from atomo.hooks.options.hook_options import DEFAULTS, CommonOptions, HookOptions, RoundOptions
from atomo.hooks.states.own_memory import momentum_of
from atomo.options.recipes import RECIPES, find_recipe
from atomo.options.schedule import phases, warm_up_schedule

__all__ = ["check_recipe", "config_of"]

STAGES: Final = 4  # of a warm-up: DGC's published epochs


def config_of(
    code: str | Codec[Any] | None,
    options: CommonOptions | RoundOptions,
    *,
    skips: bool = False,
    bucket_mb: float = 0.0,
) -> HookConfig:
    """Returns how gradients are averaged, from the options of a caller.

    Args:
        code: the codec; None with a recipe.
        options: the options that the caller gave; the others have their defaults.
        skips: True if a scaler may skip steps.
        bucket_mb: the size of a bucket, in MB of gradient; 0: the caller has buckets of its own.

    Raises:
        ConfigError: an option has another type or is out of range, options contradict each other,
            or there is no code.
    """
    complete: HookOptions = {**DEFAULTS, **options}
    check_options(complete)
    return HookConfig(
        **coding(code, complete),
        seed=complete["seed"],
        compression=complete["compression"],
        skips=skips,
        dense=DensePolicy(complete["dense_below"], complete["dense_steps"]),
        hierarchical=host_rule(complete["hierarchical"]),
        noise_damping=complete["noise_damping"],
        bucket_mb=bucket_mb,
    )


def coding(code: str | Codec[Any] | None, options: HookOptions) -> dict[str, Any]:
    """Returns the fields of a HookConfig for the codecs, their schedule and the memory.

    The memory of the options replaces that of the recipe, and a warm-up replaces the schedule of
    the recipe.

    Args:
        code: the codec; None with a recipe.
        options: all options.

    Raises:
        ConfigError: there are two codes, schedules or momentums, no code, or a number is out of
            range.
    """
    check(code, options)
    name = find_recipe(options["recipe"], RECIPES) if options["recipe"] else ""
    settings: Mapping[str, Any] = RECIPES[name].settings if name else {"code": code}
    memory = options["memory"]
    if memory == "auto":
        memory = settings.get("memory", memory)
    momentum, nesterov = momentum_of(memory, options["momentum"], options["nesterov"])
    first, schedule = scheduled(settings, options, name)
    return {
        "code": first,
        "memory": memory,
        "momentum": momentum,
        "nesterov": nesterov,
        "schedule": schedule,
        "recipe": name,
    }


def scheduled(
    settings: Mapping[str, Any], options: HookOptions, recipe: str
) -> tuple[str | Codec[Any], str]:
    """Returns the first codec, and the schedule of the others in steps.

    Raises:
        ConfigError: the schedule of the recipe counts epochs, and their length is not known.
    """
    code, epochs = settings["code"], settings.get("code_schedule", "")
    if options["warmup_steps"]:
        return warmed_up(code, options["warmup_steps"])
    if not epochs:
        return code, options["code_schedule"]
    if not options["steps_per_epoch"]:
        raise ConfigError(f"recipe {recipe} has a schedule of epochs: give steps_per_epoch")
    return in_steps(code, epochs, float(options["steps_per_epoch"]))


def check(code: object, options: HookOptions) -> None:
    """Raises ConfigError for options that contradict each other."""
    recipe, code_schedule = options["recipe"], options["code_schedule"]
    steps_per_epoch, warmup = options["steps_per_epoch"], options["warmup_steps"]
    if code is None and not recipe:
        raise ConfigError("give a code, such as 'topk(ratio=0.01)', or a recipe, such as 'dgc'")
    if code is not None and recipe:
        raise ConfigError(f"recipe {recipe} has a code of its own, and {code!s} is given: give one")
    if code_schedule and (recipe or warmup):
        maker = f"recipe={recipe!r}" if recipe else f"warmup_steps={warmup}"
        raise ConfigError(f"code_schedule and {maker} both say which codecs follow: give one")
    if steps_per_epoch and not recipe:
        raise ConfigError(f"steps_per_epoch={steps_per_epoch} is for a recipe, and none is given")


def warmed_up(code: str | Codec[Any], steps: int) -> tuple[str, str]:
    """Returns the first codec and the schedule of a warm-up in four stages, as in DGC.

    >>> warmed_up("topk(ratio=0.00001)", 8)[0]
    'topk(ratio=0.1)'

    Raises:
        ConfigError: the code has no ratio, or there are fewer steps than stages.
    """
    spec = parse_code(code)
    if spec.named or not hasattr(spec.codec, "ratio"):
        raise ConfigError(f"warmup_steps is for a codec with a ratio, such as topk, not {spec}")
    if steps < STAGES:
        raise ConfigError(f"warmup_steps must be 0, or {STAGES} and more: one a stage, got {steps}")
    return in_steps(str(spec), warm_up_schedule(spec.codec, STAGES), steps / STAGES)


def in_steps(code: str, schedule: str, steps_per_epoch: float) -> tuple[str, str]:
    """Returns the first codec of a schedule in epochs, and the others with their first steps.

    >>> in_steps("sgd", "0: fp16; 2: sgd", 100.0)
    ('fp16', '200: sgd')
    """
    first, *later = phases(code, schedule)
    spelled = (f"{round(phase.epoch * steps_per_epoch)}: {phase.codec}" for phase in later)
    return str(first.codec), "; ".join(spelled)


def check_recipe(config: HookConfig, groups: Sequence[Mapping[str, Any]]) -> None:
    """Raises ConfigError if the momentum is not that of the recipe.

    Args:
        config: how gradients are averaged.
        groups: the parameter groups of SGD; if empty, the config has the momentum.
    """
    settings = RECIPES[config.recipe].settings if config.recipe else {}
    if "momentum" not in settings:
        return
    required = momentum_in(settings)
    place = "the optimizer" if groups else "without an SGD the hook"
    for momentum in map(momentum_in, groups or [vars(config)]):
        if momentum != required:
            raise ConfigError(
                f"recipe {config.recipe} has {required}, and {place} has {momentum}: give "
                f"optimizer=SGD(..., {required})"
            )


def momentum_in(settings: Mapping[str, Any]) -> str:
    """Returns the momentum of settings as text, in the form of arguments.

    >>> momentum_in({"momentum": 0.9, "nesterov": True})
    'momentum=0.9, nesterov=True'
    """
    return f"momentum={settings['momentum']:g}, nesterov={settings.get('nesterov', False)}"
