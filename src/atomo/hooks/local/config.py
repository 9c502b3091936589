"""The configuration of local steps, from the options of a caller and of a recipe."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, final

from atomo.codecs import Codec, Law
from atomo.core.names import described, resolve
from atomo.errors import ConfigError
from atomo.exchange.collectives.collective import Collective
from atomo.hooks.optimizer import JOB_TIMEOUT_S
from atomo.hooks.options.checks import check_bucket_mb
from atomo.hooks.options.hook_config import HookConfig
from atomo.hooks.options.hook_options import (
    DEFAULTS,
    LOCAL_DEFAULTS,
    LocalStepsOptions,
    RoundOptions,
)
from atomo.hooks.options.resolve import config_of
from atomo.memory import NoMemory, applies_momentum, check_no_momentum, memory_without_momentum
from atomo.options.fragments import Fragments, count_fragments
from atomo.options.local_recipes import INNER, LOCAL_RECIPES
from atomo.options.outer import AUTO, Outer, OuterSGD, automatic_outer, parse_outer
from atomo.options.recipes import find_recipe
from atomo.options.rounds import TRANSFORMS, UNSENT, Rounds

__all__ = ["LocalConfig", "local_config"]

MEANS: Final = ("workers", "senders")


@final
@dataclass(frozen=True)
class LocalConfig:
    """Configuration of local steps, the same on all ranks."""

    hook: HookConfig
    """The average of differences."""
    rounds: Rounds
    fragments: Fragments
    outer: Outer | None
    """The outer optimizer; None: a default by the number of ranks."""
    transform: str
    timeout_s: float

    def for_ranks(self, ranks: Collective) -> "LocalConfig":
        """Returns the configuration with an outer optimizer, and with all that ranks compare."""
        outer = self.outer or automatic(self.hook, self.rounds.last_every, ranks)
        local_steps = f"{self.rounds}, mix={self.rounds.mix}, outer={outer}"
        if self.transform != "none":
            local_steps += f", transform={self.transform}"
        if not isinstance(self.fragments, int):
            local_steps += f", fragments={[[*names] for names in self.fragments]}"
        return replace(self, outer=outer, hook=replace(self.hook, local_steps=local_steps))

    def is_exact(self, ranks: Collective) -> bool:
        """True if one replica trains alone, and its codec and its memory lose nothing."""
        hook, outer = self.hook, self.outer
        lossless = hook.spec.named is None and all(Law.LOSSLESS in c.laws for c in hook.codecs)
        plain = self.transform == "none" and self.rounds.mix != UNSENT and lossless
        averages = outer is not None and outer.averages
        return ranks.size == 1 and plain and averages and hook.memory_kind is NoMemory


def local_config(code: str | Codec[Any] | None, options: LocalStepsOptions) -> LocalConfig:
    """Returns the configuration of local steps.

    Args:
        code: the codec of differences; None with a recipe.
        options: the options that the caller gave; the others have the values of the recipe, or
            their defaults.

    Raises:
        ConfigError: an option is out of range, options contradict each other, or there is no code.
    """
    recipe = of_recipe(options.get("recipe", ""))
    given: dict[str, Any] = {**LOCAL_DEFAULTS, **recipe, **options}
    outer, bucket_mb = given["outer"], given["bucket_mb"]
    mean = resolve("outer_mean", given["outer_mean"], MEANS)
    transform = resolve("transform", given["transform"], TRANSFORMS)
    fragments = given["fragments"]
    rounds = Rounds(given["every"], count_fragments(fragments), given["overlap"], given["mix"])
    check_bucket_mb(bucket_mb)
    chosen = None if outer == AUTO else parse_outer(outer)
    code = recipe.get("code") if code is None else code
    hook = without_momentum(config_of(code, of_exchange(given), bucket_mb=bucket_mb))
    hook = replace(hook, mean=mean)
    timeout_s = given["timeout_s"] or JOB_TIMEOUT_S
    return LocalConfig(hook, rounds, fragments, chosen, transform, timeout_s)


def of_recipe(name: object) -> dict[str, Any]:
    """Returns the options of a recipe, by their names here; empty without one.

    Raises:
        ConfigError: no recipe has this name.
    """
    if not isinstance(name, str):
        raise ConfigError(f"recipe must be a name, got {described(name)}")
    if not name:
        return {}
    settings = LOCAL_RECIPES[find_recipe(name, LOCAL_RECIPES)].settings
    options = {key: value for key, value in settings.items() if key not in INNER}
    return {**options, "every": options.pop("local_steps")}


def of_exchange(options: Mapping[str, Any]) -> RoundOptions:
    """Returns the options that hooks have too."""
    shared: Any = {k: v for k, v in options.items() if k in DEFAULTS and k != "recipe"}
    return shared  # type: ignore[no-any-return]


def without_momentum(config: HookConfig) -> HookConfig:
    """Returns a configuration whose memory applies no momentum.

    Raises:
        ConfigError: a memory with momentum was given.
    """
    if config.memory == "auto" and applies_momentum(config.memory_spec):
        return replace(config, memory=memory_without_momentum(config.memory_spec))
    check_no_momentum(config.memory_spec)
    return config


def automatic(config: HookConfig, every: int, ranks: Collective) -> OuterSGD:
    """Returns the default outer optimizer; rank 0 prints it."""
    outer = automatic_outer(every, ranks.size, feeds_back=config.memory_kind.feeds_back)
    if ranks.rank == 0:
        sys.stderr.write(f"atomo: outer=auto is {outer.about}\n")
    return outer
