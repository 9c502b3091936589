"""Checks of the arguments of hooks and `wrap_optimizer`, in the words of their callers."""

import math
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Final

from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.distributed import ProcessGroup
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from atomo.api.validate import value_text
from atomo.codecs import Codec
from atomo.errors import ConfigError
from atomo.memory import MEMORIES, Memory
from atomo.options.compression import Compression
from atomo.options.hierarchy import canonical_hierarchy
from atomo.options.recipes import RECIPES

__all__ = [
    "check_accelerator",
    "check_bucket_mb",
    "check_callback",
    "check_group",
    "check_model",
    "check_optimizer",
    "check_options",
    "check_scaler",
    "check_sharded",
    "check_timeout",
    "check_trainer",
    "host_rule",
]


def is_whole(value: object) -> bool:
    """True for a whole number; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_count(value: object) -> bool:
    """True for a whole number from 0."""
    return is_whole(value) and value >= 0  # type: ignore[operator]  # a number


FORMS: Final[Mapping[str, tuple[Callable[[object], bool], str]]] = {
    "memory": (
        lambda value: isinstance(value, str | Memory),
        "one of atomo.make_memory, or a name with its settings, one of auto, "
        f"{', '.join(MEMORIES)}",
    ),
    "momentum": (
        lambda value: isinstance(value, Real) and not isinstance(value, bool),
        "a number",
    ),
    "nesterov": (lambda value: isinstance(value, bool), "True or False"),
    "code_schedule": (
        lambda value: isinstance(value, str),
        "text such as '1000: topk(ratio=0.01)'",
    ),
    "recipe": (lambda value: isinstance(value, str), f"a name, one of {', '.join(RECIPES)}"),
    "steps_per_epoch": (is_count, "a whole number from 0"),
    "warmup_steps": (is_count, "a whole number from 0"),
    "dense_below": (is_count, "a whole number from 0"),
    "dense_steps": (is_count, "a whole number from 0"),
    "noise_damping": (lambda value: isinstance(value, bool | None), "True, False or None"),
    "seed": (is_whole, "a whole number"),
    "compression": (
        lambda value: isinstance(value, Compression | None),
        "an atomo.Compression or None",
    ),
}
"""The valid values of an option, as a test and in words."""


def check_options(options: Mapping[str, object]) -> None:
    """Raises ConfigError for an option with a value of another type."""
    for name, (fits, form) in FORMS.items():
        if not fits(options[name]):
            raise ConfigError(f"{name} must be {form}, got {value_text(options[name])}")
    check_timeout(options["timeout_s"])


def host_rule(hierarchical: object) -> str:
    """Returns the ranks that count as one host, as `canonical_hierarchy` spells them.

    >>> host_rule("no"), host_rule("yes"), host_rule(8)
    ('', 'yes', '8')

    Raises:
        ConfigError: it is neither a word nor a number of ranks.
    """
    try:
        if isinstance(hierarchical, bool) or not isinstance(hierarchical, str | int):
            raise ConfigError("another type")
        return canonical_hierarchy(str(hierarchical))
    except ConfigError as error:
        raise ConfigError(
            "hierarchical must be 'yes' (hosts by their names), 'no', or how many ranks count as "
            f"one host, 2 or more, got {value_text(hierarchical)}"
        ) from error


def check_scaler(scaler: object) -> None:
    """Raises ConfigError for anything but a gradient scaler or None."""
    if scaler is not None and not isinstance(scaler, GradScaler):
        raise ConfigError(
            f"scaler must be the torch.amp.GradScaler that scales the loss, or None, got "
            f"{value_text(scaler)}"
        )


def check_group(group: object) -> None:
    """Raises ConfigError for anything but a process group that has this rank, or None."""
    if group is not None and not isinstance(group, ProcessGroup):
        raise ConfigError(
            "process_group must be a torch.distributed.ProcessGroup with this rank in it, or None, "
            f"got {value_text(group)}"
        )


def check_timeout(timeout_s: object) -> None:
    """Raises ConfigError for anything but seconds above 0, or None."""
    if timeout_s is None:
        return
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float):
        raise ConfigError(f"timeout_s must be a number of seconds, got {value_text(timeout_s)}")
    if not 0 < timeout_s < math.inf:
        raise ConfigError(f"timeout_s must be above 0 and finite, got {timeout_s}")


def check_model(ddp: object, code: object = "") -> None:
    """Raises ConfigError for a model that takes no hook."""
    if isinstance(code, nn.Module):
        raise ConfigError(
            f"the model is the first argument and the code the second, such as "
            f"atomo.ddp_hook(ddp, {spelled(ddp)})"
        )
    if not isinstance(ddp, DistributedDataParallel):
        raise ConfigError(
            f"a DistributedDataParallel is needed, not a {type(ddp).__name__}: wrap the model "
            "first, and give the wrapped model to the hook"
        )
    if getattr(ddp, "_comm_hooks", ()):  # PyTorch has no public way to read them
        raise ConfigError("the DistributedDataParallel has a communication hook already: give one")


def check_bucket_mb(bucket_mb: object) -> None:
    """Raises ConfigError for anything but a number of megabytes above 0."""
    if not isinstance(bucket_mb, int | float) or bucket_mb is True or not 0 < bucket_mb < math.inf:
        raise ConfigError(f"bucket_mb must be a number of MB above 0, got {value_text(bucket_mb)}")


def check_accelerator(accelerator: object, code: object) -> None:
    """Raises ConfigError for anything but an Accelerator, or an object like one."""
    call = f"atomo.accelerate_hook(accelerator, {spelled(code, accelerator)})"
    check_first(
        hasattr(accelerator, "distributed_type"), accelerator, "an accelerate.Accelerator", call
    )


def check_trainer(trainer: object, code: object) -> None:
    """Raises ConfigError for anything but a Trainer with an Accelerator; Lightning's has none."""
    call = f"atomo.trainer_hook(trainer, {spelled(code, trainer)})"
    fits = hasattr(getattr(trainer, "accelerator", None), "distributed_type")
    check_first(fits, trainer, "a transformers.Trainer", call)


def check_callback(code: object) -> None:
    """Raises ConfigError for anything but a code, or None with a recipe."""
    call = f"atomo.lightning_callback({spelled(code)})"
    check_first(code is None or isinstance(code, str | Codec), code, "a code", call)


def check_sharded(model: object, code: object) -> None:
    """Raises ConfigError for anything but a model."""
    call = f"atomo.fsdp_hook(model, {spelled(code, model)}, replicas)"
    fits = isinstance(model, nn.Module)
    check_first(fits, model, "a model that fully_shard was called on", call)


def check_first(fits: bool, argument: object, expected: str, call: str) -> None:
    """Raises ConfigError if the first argument does not fit."""
    if not fits:
        raise ConfigError(f"{expected} comes first, not a {type(argument).__name__}: {call}")


def check_optimizer(optimizer: object, model: object, code: object) -> None:
    """Raises ConfigError for an optimizer or a model of another type."""
    order = f"atomo.wrap_optimizer(optimizer, model, {spelled(code)})"
    if not isinstance(optimizer, Optimizer):
        raise ConfigError(
            f"a torch.optim.Optimizer is needed, not a {type(optimizer).__name__}: {order}"
        )
    if not isinstance(model, nn.Module):
        raise ConfigError(f"the model is needed, not a {type(model).__name__}: {order}")


def spelled(*arguments: object) -> str:
    """Spells a code as in a call: the first argument that is a code, or an example."""
    codes = (repr(str(code)) for code in arguments if isinstance(code, str | Codec))
    return next(codes, "'topk(ratio=0.01)'")
