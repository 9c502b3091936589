"""Hugging Face Accelerate, and the Trainer of transformers, which is made of it."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, final

from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from typing_extensions import Unpack

from atomo.codecs import Codec
from atomo.errors import ConfigError
from atomo.hooks.attachment import HookAttachment, warn_of_nothing
from atomo.hooks.option_checks import check_accelerator
from atomo.hooks.options import HookOptions, takes_options
from atomo.hooks.recipe_coding import config_of
from atomo.hooks.states.rank_files import exists, load_ranks, save_rank

__all__ = ["accelerate_hook", "attach_to", "load_folder", "save_folder"]


@takes_options(HookOptions)
def accelerate_hook(
    accelerator: Any,
    code: str | Codec[Any] | None = None,
    *,
    optimizer: Optimizer | None = None,
    **options: Unpack[HookOptions],
) -> HookAttachment:
    """Compresses the gradients of all models that an Accelerator prepares afterwards.

        accelerator = Accelerator()
        attachment = atomo.accelerate_hook(accelerator, "topk(ratio=0.01)", optimizer=optimizer)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    Every rank must call this function before `prepare`. `save_state` and `load_state` then include
    the memories, in one file for each rank; if a checkpoint has no such files, loading it warns,
    and the memories stay empty. Mixed precision, `accumulate`, clipping and the
    DistributedDataParallel settings in `kwargs_handlers` work as without the hook. In a single
    process there is nothing to average, and the hook does nothing.

    The momentum and weight decay of `optimizer` move to the memory, as in `ddp_hook`. So do those
    of an optimizer that was prepared before its model. The hook cannot find an optimizer that is
    prepared later.

    Args:
        accelerator: the Accelerator of the processes that average.
        code: a codec, or its specification such as "svd(rank=3)"; None with `recipe`.
        optimizer: the optimizer of the model, prepared or not.
        options: see `HookOptions`.

    Returns:
        The attachment. Its `exchanges` has the state that `ddp_hook` returns, for each prepared
        model.

    Raises:
        TypeError: the keyword of an option is unknown.
        ConfigError: an option is invalid, models were prepared before, DistributedDataParallel does
            not average the gradients, or it has another hook. `prepare` raises the errors of
            `ddp_hook`.
    """
    check_accelerator(accelerator, code)
    attachment = HookAttachment(config_of(code, options), options.get("timeout_s"), optimizer)
    attach_to(accelerator, attachment, lambda: [*accelerator._optimizers])
    return attachment


def attach_to(
    accelerator: Any, attachment: HookAttachment, optimizers: Callable[[], Sequence[object]]
) -> None:
    """Has an Accelerator attach an attachment to the models that it prepares, and save its state.

    Args:
        accelerator: whose processes average.
        attachment: for its models.
        optimizers: those that there are when a model is prepared.

    Raises:
        ConfigError: as of `accelerate_hook`.
    """
    check(accelerator)
    accelerator.ddp_handler = Handler(accelerator, attachment, optimizers)

    def save(models: list[Any], weights: list[Any], folder: str) -> None:
        save_folder(attachment, Path(folder))

    def load(models: list[Any], folder: str) -> None:
        load_folder(attachment, Path(folder))

    accelerator.register_save_state_pre_hook(save)
    accelerator.register_load_state_pre_hook(load)


def check(accelerator: Any) -> None:
    """Raises ConfigError where the hook would not be called, or not alone."""
    kind = accelerator.distributed_type.value
    if kind != "NO" and not kind.startswith("MULTI_"):
        raise ConfigError(
            f"the Accelerator's gradients are averaged by {kind}, and the hook is for "
            "DistributedDataParallel: launch it without FSDP, DeepSpeed and Megatron-LM"
        )
    launched = int(os.environ.get("WORLD_SIZE", "1"))
    if kind == "NO" and launched > 1:  # each would train alone, and nothing would say so
        raise ConfigError(
            f"{launched} processes were launched, and the Accelerator is one alone: without a GPU "
            "make it by Accelerator(cpu=True)"
        )
    if accelerator._models:  # the only place where it says so
        raise ConfigError("call accelerate_hook before accelerator.prepare: models have no hook")
    given = accelerator.ddp_handler
    if isinstance(given, Handler) or (given is not None and given.comm_hook.value != "no"):
        raise ConfigError("the Accelerator's DistributedDataParallel has a hook already: give one")


@final
class Handler:
    """Stands where an Accelerator has its `DistributedDataParallelKwargs`, whose hooks are an enum.

    An Accelerator finds handlers by their exact class, so that no subclass of it would be taken.
    """

    def __init__(
        self,
        accelerator: Any,
        attachment: HookAttachment,
        optimizers: Callable[[], Sequence[object]],
    ) -> None:
        self._accelerator, self._attachment, self._optimizers = accelerator, attachment, optimizers
        self._given = accelerator.ddp_handler

    def to_kwargs(self) -> dict[str, Any]:
        """Returns the arguments for DistributedDataParallel."""
        return {} if self._given is None else dict(self._given.to_kwargs())

    def register_comm_hook(self, model: DistributedDataParallel) -> None:
        """Attaches the hook to a model that was wrapped; Accelerate calls it for each."""
        self._attachment.attach(model, self._accelerator.scaler, self._optimizers())


def save_folder(attachment: HookAttachment, folder: Path) -> None:
    """Writes what this rank keeps of each model."""
    for number, exchange in enumerate(attachment.exchanges):
        save_rank(exchange, folder, number)


def load_folder(attachment: HookAttachment, folder: Path) -> None:
    """Reads what was kept; from a checkpoint without compression, nothing was."""
    for number, exchange in enumerate(attachment.exchanges):
        if exists(folder, number):
            load_ranks(exchange, folder, number)
        else:
            warn_of_nothing(folder)
