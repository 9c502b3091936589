"""Hugging Face Accelerate, and the Trainer of transformers, which is made of it."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, final

from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from atomo.codecs import Codec
from atomo.errors import ConfigError
from atomo.hooks.adapter.dense import DensePolicy
from atomo.hooks.attachment import HookAttachment, warn_of_nothing
from atomo.hooks.hook_config import HookConfig
from atomo.hooks.option_checks import check_accelerator, host_rule
from atomo.hooks.recipe_coding import coding
from atomo.hooks.states.rank_files import exists, load_ranks, save_rank
from atomo.memory import Memory
from atomo.wire import Compression

__all__ = ["accelerate_hook", "attach_to", "load_folder", "save_folder"]


def accelerate_hook(
    accelerator: Any,
    code: str | Codec[Any] | None = None,
    *,
    optimizer: Optimizer | None = None,
    memory: str | Memory = "auto",
    momentum: float = 0.0,
    nesterov: bool = False,
    dense_below: int = 0,
    dense_steps: int = 0,
    code_schedule: str = "",
    recipe: str = "",
    steps_per_epoch: int = 0,
    warmup_steps: int = 0,
    hierarchical: str | int = "no",
    noise_damping: bool | None = None,
    seed: int = 0,
    compression: Compression | None = None,
    timeout_s: float | None = None,
) -> HookAttachment:
    """Compresses the gradients of all models that an Accelerator prepares from now on.

        accelerator = Accelerator()
        attachment = atomo.accelerate_hook(accelerator, "topk(ratio=0.01)", optimizer=optimizer)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    On every rank, before `prepare`. `save_state` and `load_state` then have what every rank keeps
    back, a file a rank; a checkpoint without such files is loaded with a warning, and memories
    begin with nothing. Mixed precision, `accumulate`, clipping, and what `kwargs_handlers` say of
    DistributedDataParallel stay as they are. One process alone has nothing to average.

    The momentum and the weight decay of `optimizer` move into the memory, as with `ddp_hook`. So do
    those of an optimiser that is prepared before its model: no other one is known when the hook is
    made.

    Args:
        accelerator: whose processes average.
        optimizer: the one that steps the model, prepared or not.
        code: a codec, or its specification such as "svd(rank=3)".
        memory: what each rank keeps back, as of `ddp_hook`.
        momentum: as of `ddp_hook`.
        nesterov: whether that is Nesterov's.
        dense_below: parameters of fewer entries travel as float32, whatever the codec.
        dense_steps: in so many first steps all do.
        code_schedule: as of `ddp_hook`.
        recipe: as of `ddp_hook`.
        steps_per_epoch: as of `ddp_hook`.
        warmup_steps: as of `ddp_hook`.
        hierarchical: gradients dense inside a host, compressed between hosts: "yes" (hosts by
            name), "no", or how many ranks count as one host.
        noise_damping: as of `ddp_hook`.
        seed: of what codecs draw.
        compression: blosc's settings for the frames.
        timeout_s: the longest wait for another rank, seconds; None: that of the process group.

    Returns:
        The attachment: `exchanges` has, for each prepared model, what `ddp_hook` calls the state.

    Raises:
        ConfigError: models were prepared before, gradients are not averaged by
            DistributedDataParallel, or it has another hook; `prepare` raises as `ddp_hook` does.
    """
    check_accelerator(accelerator, code)
    dense, hosts = DensePolicy(dense_below, dense_steps), host_rule(hierarchical)
    coded = coding(
        code, memory, code_schedule, recipe, steps_per_epoch, warmup_steps, momentum, nesterov
    )
    config = HookConfig(
        **coded,
        seed=seed,
        compression=compression,
        dense=dense,
        hierarchical=hosts,
        noise_damping=noise_damping,
    )
    attachment = HookAttachment(config, timeout_s, optimizer)
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
