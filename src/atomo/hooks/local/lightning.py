"""Local steps in Lightning: a callback with its state in Lightning's checkpoints."""

from functools import cache
from importlib import import_module
from typing import Any, Final

from typing_extensions import Unpack

from atomo.codecs import Codec
from atomo.hooks.attachment import warn_of_nothing
from atomo.hooks.lightning import package
from atomo.hooks.local.attachment import LocalStepsAttachment
from atomo.hooks.options.checks import check_callback
from atomo.hooks.options.hook_options import LOCAL_DEFAULTS, LocalStepsOptions, takes_options

__all__ = ["lightning_local_steps"]

KEY: Final = "atomo-local-steps"  # not the name of the class, which may change


@takes_options(LocalStepsOptions, **LOCAL_DEFAULTS)
def lightning_local_steps(
    code: str | Codec[Any] | None = None, **options: Unpack[LocalStepsOptions]
) -> Any:
    """Creates a callback that has the model of a Lightning Trainer take local steps.

        callback = atomo.lightning_local_steps("topk(ratio=0.01)", every=30)
        Trainer(strategy="ddp", callbacks=[callback])

    `configure_optimizers` returns one optimizer. Validation and checkpoints have the anchor, which
    the model has at the end of `fit` too. The state in a checkpoint has the weights, the moments
    and the memories of all ranks, gathered at rank 0: the same number of ranks continues in the
    middle of the round, another number begins at the anchor. Gathering takes the memory of all
    replicas on rank 0.

    Args:
        code: the codec of differences, or its specification; None with `recipe`.
        options: see `LocalStepsOptions`.

    Returns:
        The callback. From the beginning of `fit`, its `attachment.replica` has `exchange` and
        `steps`. `fit` raises the errors of `local_steps`.

    Raises:
        TypeError: the keyword of an option is unknown.
        ConfigError: an option is invalid, or Lightning is not installed.
    """
    check_callback(code)
    return callback_class(package())(LocalStepsAttachment(code, options))


@cache
def callback_class(name: str) -> Any:
    """Creates the class of the callback, a subclass of the `Callback` of the package."""

    class LocalStepsCallback(import_module(name).Callback):  # type: ignore[misc]
        """Attaches local steps to the model at the beginning of each fit."""

        def __init__(self, attachment: LocalStepsAttachment) -> None:
            self.attachment = attachment
            self._loaded: dict[str, Any] = {}  # the state in a checkpoint, until training begins
            self._gathers = False  # False before a fit, and after an error on this rank

        @property
        def state_key(self) -> str:
            return KEY

        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            self.attachment.attach(trainer.strategy.model, trainer.optimizers)
            self._gathers = True

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            if self._loaded:  # after Lightning has loaded the weights and moments of rank 0
                self.attachment.replica.load_state_dict(self._loaded)
            self._loaded = {}

        def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
            if self._gathers:
                self.attachment.show_anchor()

        def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
            if self._gathers:
                self.attachment.hide_anchor()

        def on_exception(self, *about: Any) -> None:
            self._gathers = False  # a gather would wait for ranks that have not failed

        def state_dict(self) -> dict[str, Any]:
            if not self._gathers:
                return self._loaded
            self.attachment.hide_anchor()  # a validation saves the best checkpoint
            return self.attachment.replica.gather(weights=True) or {}

        def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
            if self._gathers:  # the entries are views of the model
                with self.attachment.replica.anchor():
                    weights = checkpoint["state_dict"]
                    checkpoint["state_dict"] = {n: t.clone() for n, t in weights.items()}

        def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
            if KEY not in checkpoint["callbacks"]:
                warn_of_nothing("the checkpoint")

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            self._loaded = state_dict

        def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
            self._gathers = False
            self.attachment.end()

    return LocalStepsCallback
