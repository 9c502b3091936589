"""The Trainer of Hugging Face transformers, whose gradients Accelerate averages."""

from importlib import import_module
from pathlib import Path
from typing import Any

from atomo.codecs import Codec
from atomo.errors import CheckpointError
from atomo.hooks.accelerate import attach_to, load_folder, save_folder
from atomo.hooks.adapter.dense import DensePolicy
from atomo.hooks.attachment import HookAttachment
from atomo.hooks.hook_config import HookConfig
from atomo.hooks.option_checks import check_trainer, host_rule
from atomo.hooks.recipe_coding import coding
from atomo.memory import Memory
from atomo.wire import Compression

__all__ = ["trainer_hook"]


def trainer_hook(
    trainer: Any,
    code: str | Codec[Any] | None = None,
    *,
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
    """Compresses the gradients of a Trainer of transformers.

        trainer = Trainer(model, arguments, train_dataset=...)
        attachment = atomo.trainer_hook(trainer, "topk(ratio=0.01)")
        trainer.train()

    On every rank, before `train`. What every rank keeps back is in the Trainer's checkpoints, a
    file a rank, and found again by `train(resume_from_checkpoint=True)`. A folder elsewhere than
    in `output_dir` must be named in `TrainingArguments(resume_from_checkpoint=...)` too: the
    Trainer tells nobody else what its `train` was given.

    Momentum and weight decay of an SGD, which the Trainer has made when it wraps the model, move
    into the memory, as with `ddp_hook`; where they cannot, a warning says why.

    Args:
        trainer: whose model is trained.
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
        As of `accelerate_hook`.

    Raises:
        ConfigError: as of `accelerate_hook`.
    """
    check_trainer(trainer, code)
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
    attachment = HookAttachment(config, timeout_s)
    attach_to(trainer.accelerator, attachment, lambda: [one] if (one := trainer.optimizer) else [])
    trainer.add_callback(callback_of(attachment))
    return attachment


def callback_of(attachment: HookAttachment) -> Any:
    """Makes the callback that the Trainer calls when it begins, saves and steps."""

    class Checkpoints(import_module("transformers").TrainerCallback):  # type: ignore[misc]
        """A subclass because the Trainer calls every event of a callback."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **about: Any) -> None:
            if state.global_step:
                load_folder(attachment, resumed_from(args, state.global_step))

        def on_step_begin(self, args: Any, state: Any, control: Any, **about: Any) -> None:
            attachment.at_rate(about["optimizer"].param_groups[0]["lr"])

        def on_save(self, args: Any, state: Any, control: Any, **about: Any) -> None:
            if not args.save_only_model:
                save_folder(attachment, folder_of(args, state.global_step))

    return Checkpoints()


def folder_of(args: Any, step: int) -> Path:
    """Returns the folder in which a Trainer saves a step."""
    return Path(args.output_dir) / f"checkpoint-{step}"


def resumed_from(args: Any, step: int) -> Path:
    """Returns the folder that a Trainer continues from.

    Raises:
        CheckpointError: it is not where checkpoints are saved, and not in the arguments either.
    """
    said = args.resume_from_checkpoint
    folders = [Path(said)] if said and said != "True" else []
    folders.append(folder_of(args, step))
    for folder in folders:
        if folder.is_dir():
            return folder
    raise CheckpointError(
        f"training goes on at step {step}, and {folders[-1]} is no folder: name the checkpoint in "
        "TrainingArguments(resume_from_checkpoint=...) too, for what ranks keep back lies there"
    )
