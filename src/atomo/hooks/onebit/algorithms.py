"""1-bit Adam, 0/1 Adam and 1-bit LAMB for training loops."""

import math
from collections.abc import Iterable
from numbers import Real
from typing import Any, Final

from atomo.errors import ConfigError
from atomo.exchange.collectives.collective import Collective
from atomo.hooks.job import join_job
from atomo.hooks.onebit.optimizer import OneBitOptimizer
from atomo.hooks.onebit.rules import LambRule, MomentumRule, OneBitAdamRule, ZeroOneAdamRule

__all__ = ["onebit_adam", "onebit_lamb", "zero_one_adam"]

TIMEOUT_S: Final = 300.0
Betas = tuple[float, float]


def onebit_adam(
    params: Iterable[Any],
    lr: float = 1e-3,
    *,
    freeze_step: int,
    betas: Betas = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    collective: Collective | None = None,
) -> OneBitOptimizer:
    """Makes a 1-bit Adam (Tang et al., ICML 2021).

        optimizer = atomo.onebit_adam(model.parameters(), lr=1e-3, freeze_step=1000)

    Until `freeze_step`, ranks average gradients uncompressed, as Adam without bias correction. Then
    the variance stays as it is, and ranks average the momentum with one bit an entry, with error
    feedback in both directions. The optimizer averages by itself: do not wrap the model in
    DistributedDataParallel. The call copies the weights of rank 0 to all ranks.

    Args:
        params: parameters, or parameter groups with lr, betas, eps and weight_decay.
        lr: the learning rate.
        freeze_step: the number of first steps that are dense: 15 to 25 % of all steps.
        betas: the decays of momentum and variance.
        eps: added to the root of the variance.
        weight_decay: the decay beside the update, times the learning rate, as in AdamW.
        collective: the ranks; None: all ranks of the job.

    Raises:
        ConfigError: a setting is out of range, or a parameter is averaged elsewhere.
    """
    check_count("freeze_step", freeze_step)
    return make(params, OneBitAdamRule(freeze_step), lr, betas, eps, weight_decay, collective)


def zero_one_adam(
    params: Iterable[Any],
    lr: float = 1e-3,
    *,
    var_freeze_step: int = 100_000,
    var_update_scaler: int = 16,
    local_step_scaler: int = 32_678,
    local_step_clipper: int = 16,
    betas: Betas = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    collective: Collective | None = None,
) -> OneBitOptimizer:
    """Makes a 0/1 Adam (Lu et al., ICLR 2023).

    Until `var_freeze_step`, fewer and fewer steps average gradients uncompressed and change the
    variance; the others average gradients with one bit an entry. Then ranks take local steps, and
    average the sum of a round's updates with one bit an entry. During a round, ranks have different
    weights. Defaults are those of the authors. For other arguments and errors see `onebit_adam`.

    Args:
        params: parameters, or parameter groups. All have one learning rate.
        lr: the learning rate.
        var_freeze_step: the last step that may change the variance.
        var_update_scaler: the number of dense steps after which their distance doubles.
        local_step_scaler: the number of steps after which the local steps of a round double.
        local_step_clipper: the largest number of local steps of a round.
        betas: the decays of momentum and variance.
        eps: added to the root of the variance.
        weight_decay: the decay beside the update.
        collective: the ranks; None: all ranks of the job.
    """
    counts = {
        "var_freeze_step": var_freeze_step,
        "var_update_scaler": var_update_scaler,
        "local_step_scaler": local_step_scaler,
        "local_step_clipper": local_step_clipper,
    }
    for name, count in counts.items():
        check_count(name, count)
    rule = ZeroOneAdamRule(
        var_freeze_step, var_update_scaler, local_step_scaler, local_step_clipper
    )
    return make(params, rule, lr, betas, eps, weight_decay, collective)


def onebit_lamb(
    params: Iterable[Any],
    lr: float = 1e-3,
    *,
    freeze_step: int,
    max_coeff: float = 10.0,
    min_coeff: float = 0.01,
    coeff_beta: float = 0.9,
    factor_max: float = 4.0,
    factor_min: float = 0.5,
    factor_threshold: float = 0.1,
    betas: Betas = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    collective: Collective | None = None,
) -> OneBitOptimizer:
    """Makes a 1-bit LAMB (Li et al., HiPC 2022): `onebit_adam` with a factor for each layer.

    Args:
        params: parameters, or parameter groups.
        lr: the learning rate.
        freeze_step: the number of first steps that are dense.
        max_coeff: the largest factor of a layer.
        min_coeff: the least factor of a layer.
        coeff_beta: the decay of the moving average of a layer's factor until the freeze.
        factor_max: the largest change of the factor after the freeze.
        factor_min: the least change of it.
        factor_threshold: the largest relative change of it in one step.
        betas: the decays of momentum and variance.
        eps: added to the root of the variance.
        weight_decay: the decay that is part of a layer's update.
        collective: the ranks; None: all ranks of the job.
    """
    check_count("freeze_step", freeze_step)
    for name, low, high in (("coeff", min_coeff, max_coeff), ("factor", factor_min, factor_max)):
        if not 0 < low <= high < math.inf:
            raise ConfigError(f"0 < min_{name} <= max_{name} is needed, got {low} and {high}")
    if not 0 <= coeff_beta < 1 or not 0 < factor_threshold < 1:
        raise ConfigError(
            "coeff_beta must be in [0, 1) and factor_threshold in (0, 1), got "
            f"{coeff_beta} and {factor_threshold}"
        )
    rule = LambRule(
        freeze_step,
        (min_coeff, max_coeff),
        coeff_beta,
        (factor_min, factor_max),
        factor_threshold,
    )
    return make(params, rule, lr, betas, eps, weight_decay, collective)


def make(
    params: Iterable[Any],
    rule: MomentumRule,
    lr: float,
    betas: Betas,
    eps: float,
    weight_decay: float,
    collective: Collective | None,
) -> OneBitOptimizer:
    """Makes an optimizer with a rule. Errors: those of `onebit_adam`."""
    for name, value, most in (
        ("lr", lr, math.inf), ("betas", betas[0], 1), ("betas", betas[1], 1),
        ("eps", eps, math.inf), ("weight_decay", weight_decay, math.inf),
    ):  # fmt: skip
        if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= value < most:
            raise ConfigError(f"{name} must be from 0 and below {most}, got {value!r}")
    defaults = {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay}
    ranks = join_job(TIMEOUT_S) if collective is None else collective
    return OneBitOptimizer(params, defaults, rule, ranks)


def check_count(name: str, value: object) -> None:
    """Raises ConfigError unless a value is a whole number from 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name} must be a whole number from 1, got {value!r}")
