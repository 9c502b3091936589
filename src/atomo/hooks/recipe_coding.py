"""Recipes, and warm-ups of the ratio, as the codec, the memory and the steps that hooks have."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from atomo.api.validate import value_text
from atomo.codecs import Codec
from atomo.core.names import resolve
from atomo.errors import ConfigError
from atomo.hooks.code_spec import parse_code
from atomo.hooks.hook_config import HookConfig
from atomo.hooks.states.own_memory import momentum_of
from atomo.memory import Memory
from atomo.options.recipes import RECIPES
from atomo.options.schedule import phases, warm_up_schedule

__all__ = ["check_recipe", "coding"]

STAGES: Final = 4  # of a warm-up: DGC's published epochs


def coding(
    code: str | Codec[Any] | None,
    memory: str | Memory,
    code_schedule: str,
    recipe: str,
    steps_per_epoch: int,
    warmup_steps: int,
    momentum: float = 0.0,
    nesterov: bool = False,
) -> dict[str, Any]:
    """Returns the fields of a HookConfig for the codecs, their schedule and the memory.

    A memory that is given goes before that of the recipe, and a warm-up before its schedule.

    Args:
        code: as of `ddp_hook`; None with a recipe.
        memory: as of `ddp_hook`.
        code_schedule: as of `ddp_hook`.
        recipe: a name of `atomo.options.recipes`; "": none.
        steps_per_epoch: for a recipe whose schedule has epochs.
        warmup_steps: the steps in which the ratio falls to its value; 0: it has it at once.
        momentum: as of `ddp_hook`.
        nesterov: as of `ddp_hook`.

    Raises:
        ConfigError: there are two codes, schedules or momentums, no code, or a number is out of
            range.
    """
    check(code, code_schedule, recipe, steps_per_epoch, warmup_steps)
    name = resolve("recipe", recipe, RECIPES) if recipe else ""
    settings: Mapping[str, Any] = RECIPES[name].settings if name else {"code": code}
    code = settings["code"]
    if memory == "auto":
        memory = settings.get("memory", memory)
    epochs = settings.get("code_schedule", "")
    if warmup_steps:
        code, code_schedule = warmed_up(code, warmup_steps)
    elif epochs:
        if not steps_per_epoch:
            raise ConfigError(f"recipe {name} has a schedule of epochs: give steps_per_epoch")
        code, code_schedule = in_steps(settings["code"], epochs, float(steps_per_epoch))
    momentum, nesterov = momentum_of(memory, momentum, nesterov)
    return {
        "code": code,
        "memory": memory,
        "momentum": momentum,
        "nesterov": nesterov,
        "schedule": code_schedule,
        "recipe": name,
    }


def check(
    code: object, code_schedule: object, recipe: object, steps_per_epoch: object, warmup: object
) -> None:
    """Raises ConfigError for arguments that contradict each other, or of another type."""
    if not isinstance(recipe, str):
        raise ConfigError(
            f"recipe must be a name, one of {', '.join(RECIPES)}, got {value_text(recipe)}"
        )
    if not isinstance(code_schedule, str):
        raise ConfigError(
            "code_schedule must be text such as '1000: topk(ratio=0.01)', got "
            f"{value_text(code_schedule)}"
        )
    for name, value in (("steps_per_epoch", steps_per_epoch), ("warmup_steps", warmup)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ConfigError(f"{name} must be a whole number from 0, got {value_text(value)}")
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
    """Returns the first codec of a schedule of epochs, and the others with the step of each.

    >>> in_steps("sgd", "0: fp16; 2: sgd", 100.0)
    ('fp16', '200: sgd')
    """
    first, *later = phases(code, schedule)
    spelled = (f"{round(one.epoch * steps_per_epoch)}: {one.codec}" for one in later)
    return str(first.codec), "; ".join(spelled)


def check_recipe(config: HookConfig, groups: Sequence[Mapping[str, Any]]) -> None:
    """Raises ConfigError where the momentum is not that of the recipe.

    Args:
        config: how gradients are averaged.
        groups: those of SGD; where there are none, the config has the momentum.
    """
    settings = RECIPES[config.recipe].settings if config.recipe else {}
    if "momentum" not in settings:
        return
    wanted = momentum_in(settings)
    place = "the optimizer" if groups else "without an SGD the hook"
    for found in map(momentum_in, groups or [vars(config)]):
        if found != wanted:
            raise ConfigError(
                f"recipe {config.recipe} has {wanted}, and {place} has {found}: give "
                f"optimizer=SGD(..., {wanted})"
            )


def momentum_in(settings: Mapping[str, Any]) -> str:
    """Spells the momentum of some settings, as arguments.

    >>> momentum_in({"momentum": 0.9, "nesterov": True})
    'momentum=0.9, nesterov=True'
    """
    return f"momentum={settings['momentum']:g}, nesterov={settings.get('nesterov', False)}"
