"""The hook in the Trainer of Hugging Face transformers, which uses Accelerate."""

from importlib import import_module
from pathlib import Path
from typing import Any

from typing_extensions import Unpack

from atomo.codecs import Codec
from atomo.errors import CheckpointError
from atomo.hooks.accelerate import attach_to, load_folder, save_folder
from atomo.hooks.attachment import HookAttachment
from atomo.hooks.options.checks import check_trainer
from atomo.hooks.options.hook_options import HookOptions, takes_options
from atomo.hooks.options.resolve import config_of

__all__ = ["folder_of", "resumed_from", "trainer_hook"]


@takes_options(HookOptions)
def trainer_hook(
    trainer: Any, code: str | Codec[Any] | None = None, **options: Unpack[HookOptions]
) -> HookAttachment:
    """Compresses the gradients of a Trainer of transformers.

        trainer = Trainer(model, arguments, train_dataset=...)
        attachment = atomo.trainer_hook(trainer, "topk(ratio=0.01)")
        trainer.train()

    Every rank must call this function before `train`. The Trainer's checkpoints then include the
    memories, in one file for each rank, and `train(resume_from_checkpoint=True)` loads them. Name a
    checkpoint folder outside `output_dir` in `TrainingArguments(resume_from_checkpoint=...)` too,
    because the Trainer does not pass the argument of `train` to callbacks.

    If the Trainer has an SGD when it wraps the model, its momentum and weight decay move to the
    memory, as in `ddp_hook`; if they cannot, a warning gives the reason.

    Args:
        trainer: the Trainer of the model.
        code: a codec, or its specification such as "svd(rank=3)"; None with `recipe`.
        options: see `HookOptions`.

    Returns:
        The attachment, as from `accelerate_hook`.

    Raises:
        TypeError: the keyword of an option is unknown.
        ConfigError: as from `accelerate_hook`.
    """
    check_trainer(trainer, code)
    attachment = HookAttachment(config_of(code, options), options.get("timeout_s"))
    attach_to(trainer.accelerator, attachment, lambda: present(trainer.optimizer))
    trainer.add_callback(callback_of(attachment))
    return attachment


def present(optimizer: object) -> list[object]:
    """Returns a list of the optimizer; empty if the Trainer has none yet."""
    return [optimizer] if optimizer else []


def callback_of(attachment: HookAttachment) -> Any:
    """Creates the callback that the Trainer calls when it begins, saves and steps."""

    class Checkpoints(import_module("transformers").TrainerCallback):  # type: ignore[misc]
        """Callback with all events; the Trainer calls every one, so it must be a subclass."""

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
        CheckpointError: there is no such folder, neither in `output_dir` nor in the arguments.
    """
    resumed = args.resume_from_checkpoint
    folders = [Path(resumed)] if resumed and resumed != "True" else []
    folders.append(folder_of(args, step))
    for folder in folders:
        if folder.is_dir():
            return folder
    raise CheckpointError(
        f"training continues at step {step}, and {folders[-1]} is no folder: name the checkpoint "
        "in TrainingArguments(resume_from_checkpoint=...) too, since it has the memories of ranks"
    )
