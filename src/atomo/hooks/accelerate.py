"""The hook in Hugging Face Accelerate, which the Trainer of transformers uses too."""

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
from atomo.hooks.options.checks import check_accelerator
from atomo.hooks.options.hook_options import HookOptions, takes_options
from atomo.hooks.options.resolve import config_of
from atomo.hooks.states.rank_files import exists, load_ranks, save_rank

__all__ = ["accelerate_hook", "attach_to", "check_distributed", "load_folder", "save_folder"]


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
    """Registers an attachment: for the models that an Accelerator prepares, and its checkpoints.

    Args:
        accelerator: the Accelerator of the processes that average.
        attachment: hooks the models, and has their states.
        optimizers: returns the optimizers that exist when a model is prepared.

    Raises:
        ConfigError: as from `accelerate_hook`.
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
    """Raises ConfigError if the hook would not be called, or if there is another hook."""
    check_distributed(accelerator)
    if accelerator._models:  # no public attribute has them
        raise ConfigError("call accelerate_hook before accelerator.prepare: models have no hook")
    handler = accelerator.ddp_handler
    if isinstance(handler, Handler) or (handler is not None and handler.comm_hook.value != "no"):
        raise ConfigError("the Accelerator's DistributedDataParallel has a hook already: give one")


def check_distributed(accelerator: Any) -> None:
    """Raises ConfigError if DistributedDataParallel does not average the gradients."""
    kind = accelerator.distributed_type.value
    if kind != "NO" and not kind.startswith("MULTI_"):
        raise ConfigError(
            f"the Accelerator's gradients are averaged by {kind}, and the hook is for "
            "DistributedDataParallel: launch it without FSDP, DeepSpeed and Megatron-LM"
        )
    launched = int(os.environ.get("WORLD_SIZE", "1"))
    if kind == "NO" and launched > 1:  # each would train alone, without an error
        raise ConfigError(
            f"{launched} processes were launched, and the Accelerator has one: without a GPU "
            "create it by Accelerator(cpu=True)"
        )


@final
class Handler:
    """Replacement for the `DistributedDataParallelKwargs` of an Accelerator.

    The hooks of that class are an enum, which cannot be extended. A subclass is no solution: an
    Accelerator finds handlers by their exact class.
    """

    def __init__(
        self,
        accelerator: Any,
        attachment: HookAttachment,
        optimizers: Callable[[], Sequence[object]],
    ) -> None:
        self._accelerator, self._attachment, self._optimizers = accelerator, attachment, optimizers
        self._replaced = accelerator.ddp_handler

    def to_kwargs(self) -> dict[str, Any]:
        """Returns the arguments for DistributedDataParallel."""
        return {} if self._replaced is None else dict(self._replaced.to_kwargs())

    def register_comm_hook(self, model: DistributedDataParallel) -> None:
        """Attaches the hook to a wrapped model; Accelerate calls this for each model."""
        self._attachment.attach(model, self._accelerator.scaler, self._optimizers())


def save_folder(attachment: HookAttachment, folder: Path) -> None:
    """Writes the memories of this rank, a file for each model."""
    for number, exchange in enumerate(attachment.exchanges):
        save_rank(exchange, folder, number)


def load_folder(attachment: HookAttachment, folder: Path) -> None:
    """Loads the memories of this rank; warns if the checkpoint has none."""
    for number, exchange in enumerate(attachment.exchanges):
        if exists(folder, number):
            load_ranks(exchange, folder, number)
        else:
            warn_of_nothing(folder)
