"""Optimizers from DeepSpeed's JSON, as its versions with 1-bit optimizers read it."""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from atomo.core.names import nearest
from atomo.core.safe_read import MAX_JSON_BYTES, read_text
from atomo.errors import ConfigError
from atomo.exchange.collectives.collective import Collective
from atomo.hooks.onebit.algorithms import onebit_adam, onebit_lamb, zero_one_adam
from atomo.hooks.onebit.optimizer import OneBitOptimizer

__all__ = ["deepspeed_optimizer"]

FREEZE_STEP: Final = 100_000  # DeepSpeed's default
COMMON: Final = ("lr", "betas", "eps", "weight_decay")
IGNORED: Final = ("comm_backend_name", "cuda_aware")
"""Keys about DeepSpeed's own transport."""
FIXED: Final[Mapping[str, object]] = MappingProxyType(
    {"amsgrad": False, "max_grad_norm": 0.0, "eps_inside_sqrt": False, "bias_correction": True}
)
"""Keys that have one supported value. DeepSpeed's optimizers do not use bias_correction."""
ALGORITHMS: Final[Mapping[str, tuple[Callable[..., OneBitOptimizer], tuple[str, ...]]]] = (
    MappingProxyType(
        {
            "onebitadam": (onebit_adam, ("freeze_step",)),
            "zerooneadam": (
                zero_one_adam,
                ("var_freeze_step", "var_update_scaler", "local_step_scaler", "local_step_clipper"),
            ),
            "onebitlamb": (
                onebit_lamb,
                ("freeze_step", "max_coeff", "min_coeff", "coeff_beta", "factor_max", "factor_min",
                 "factor_threshold"),
            ),
        }
    )
)  # fmt: skip


def deepspeed_optimizer(
    params: Iterable[Any],
    config: str | Path | Mapping[str, Any],
    collective: Collective | None = None,
) -> OneBitOptimizer:
    """Makes the optimizer that a configuration of DeepSpeed names.

        optimizer = atomo.deepspeed_optimizer(model.parameters(), "ds_config.json")

    It reads `{"optimizer": {"type": "OneBitAdam", "params": {...}}}`, also for "ZeroOneAdam" and
    "OneBitLamb"; other sections are not read.

    Args:
        params: parameters, or parameter groups.
        config: the path of the JSON file, or its content.
        collective: the ranks; None: all ranks of the job.

    Raises:
        ConfigError: the file cannot be read, or names another optimizer or an unknown setting.
    """
    section = config_of(config).get("optimizer")
    if not isinstance(section, Mapping) or not isinstance(section.get("type"), str):
        raise ConfigError('the configuration has no {"optimizer": {"type": ...}}')
    kind = section["type"]
    if kind.lower() not in ALGORITHMS:
        raise ConfigError(
            f"optimizer type {kind!r}: OneBitAdam, ZeroOneAdam and OneBitLamb are read"
        )
    make, own = ALGORITHMS[kind.lower()]
    settings = checked(kind, dict(section.get("params", {})), (*COMMON, *own))
    if "freeze_step" in own:
        settings.setdefault("freeze_step", FREEZE_STEP)
    return make(params, **settings, collective=collective)


def config_of(config: str | Path | Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a configuration, from its file if need be. Errors: those of deepspeed_optimizer."""
    if isinstance(config, Mapping):
        return config
    try:
        content = json.loads(read_text(Path(config), MAX_JSON_BYTES))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{config}: {error}") from error
    if not isinstance(content, Mapping):
        raise ConfigError(f"{config} is no JSON object")
    return content


def checked(kind: str, settings: dict[str, Any], known: tuple[str, ...]) -> dict[str, Any]:
    """Returns the settings for our function.

    Raises:
        ConfigError: a setting is unknown, or has an unsupported value.
    """
    for name, value in FIXED.items():
        if settings.pop(name, value) != value:
            raise ConfigError(f"{kind}: {name} must be {value}")
    for name in IGNORED:
        settings.pop(name, None)
    for name in settings:
        if name not in known:
            raise ConfigError(f"{kind}: unknown setting {name!r}; {nearest(name, known)}")
    if "betas" in settings:
        settings["betas"] = tuple(settings["betas"])
    return settings
