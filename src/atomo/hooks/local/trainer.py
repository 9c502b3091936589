"""Local steps in the Trainer of Hugging Face transformers."""

from importlib import import_module
from typing import Any

from typing_extensions import Unpack

from atomo.codecs import Codec
from atomo.hooks.attachment import warn_of_nothing
from atomo.hooks.local.attachment import LocalStepsAttachment
from atomo.hooks.local.files import load_replica, save_replica
from atomo.hooks.options.checks import check_trainer
from atomo.hooks.options.hook_options import LOCAL_DEFAULTS, LocalStepsOptions, takes_options
from atomo.hooks.trainer import folder_of, resumed_from

__all__ = ["trainer_local_steps"]


@takes_options(LocalStepsOptions, **LOCAL_DEFAULTS)
def trainer_local_steps(
    trainer: Any, code: str | Codec[Any] | None = None, **options: Unpack[LocalStepsOptions]
) -> LocalStepsAttachment:
    """Has the model of a Trainer of transformers take local steps, as `local_steps` does.

        trainer = Trainer(model, arguments, train_dataset=...)
        local = atomo.trainer_local_steps(trainer, "topk(ratio=0.01)", every=30)
        trainer.train()

    Every rank must call this before `train`. The Trainer evaluates and saves the anchor, which the
    model has at the end too. A checkpoint has a file for each rank with its own weights, its
    moments and its memory, and `train(resume_from_checkpoint=True)` continues in the middle of the
    round. Name a checkpoint folder outside `output_dir` in
    `TrainingArguments(resume_from_checkpoint=...)` too.

    Args:
        trainer: the Trainer of the model.
        code: the codec of differences, or its specification; None with `recipe`.
        options: see `LocalStepsOptions`.

    Returns:
        The attachment; from the beginning of training, its `replica` has `exchange` and `steps`.

    Raises:
        TypeError: the keyword of an option is unknown.
        ConfigError: an option is invalid. `train` raises the errors of `local_steps`.
    """
    check_trainer(trainer, code)
    attachment = LocalStepsAttachment(code, options)
    trainer.add_callback(callback_of(attachment, trainer))
    return attachment


def callback_of(attachment: LocalStepsAttachment, trainer: Any) -> Any:
    """Creates the callback that the Trainer calls."""

    class LocalStepsCallback(import_module("transformers").TrainerCallback):  # type: ignore[misc]
        """Callback with all events; the Trainer calls every one, so it must be a subclass."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **about: Any) -> None:
            attachment.attach(trainer.model_wrapped, [trainer.optimizer])
            if state.global_step:
                resume(attachment, args, state.global_step)

        def on_step_begin(self, args: Any, state: Any, control: Any, **about: Any) -> None:
            attachment.hide_anchor()

        def on_step_end(self, args: Any, state: Any, control: Any, **about: Any) -> None:
            if control.should_evaluate or control.should_save:
                attachment.show_anchor()

        on_epoch_end = on_step_end

        def on_save(self, args: Any, state: Any, control: Any, **about: Any) -> None:
            attachment.hide_anchor()
            if not args.save_only_model:
                save_replica(attachment.replica, folder_of(args, state.global_step))

        def on_train_end(self, args: Any, state: Any, control: Any, **about: Any) -> None:
            best = args.load_best_model_at_end and state.best_model_checkpoint is not None
            attachment.end(keep=best)

    return LocalStepsCallback()


def resume(attachment: LocalStepsAttachment, args: Any, step: int) -> None:
    """Loads the state of this rank from the checkpoint that a Trainer continues from."""
    folder = resumed_from(args, step)
    state = load_replica(attachment.replica, folder)
    if state is None:
        warn_of_nothing(folder)
    else:
        attachment.replica.load_inner(state)
