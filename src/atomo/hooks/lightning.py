"""The hook in Lightning: a callback with its state in Lightning's checkpoints."""

import sys
from functools import cache
from importlib import import_module
from typing import Any, Final

from torch.nn.parallel import DistributedDataParallel
from typing_extensions import Unpack

from atomo.codecs import Codec
from atomo.core.distribution import install_command
from atomo.errors import ConfigError, MissingPackage
from atomo.hooks.adapter.exchange import Exchange
from atomo.hooks.attachment import HookAttachment, warn_of_nothing
from atomo.hooks.options.checks import check_callback
from atomo.hooks.options.hook_options import HookOptions, takes_options
from atomo.hooks.options.resolve import config_of

__all__ = ["lightning_callback", "package"]

PACKAGES: Final = ("lightning.pytorch", "pytorch_lightning")  # one package under two names
KEY: Final = "atomo"  # not the name of the class, which may change while checkpoints exist


@takes_options(HookOptions)
def lightning_callback(code: str | Codec[Any] | None = None, **options: Unpack[HookOptions]) -> Any:
    """Creates a callback that compresses the gradients of a Lightning Trainer with strategy "ddp".

        callback = atomo.lightning_callback("topk(ratio=0.01)")
        Trainer(strategy="ddp", callbacks=[callback])

    It works on any device. Lightning's checkpoints then include the memories of all ranks, gathered
    at rank 0; with a checkpoint that has none, the memories start empty. `precision`,
    `accumulate_grad_batches` and clipping work as without the callback. In a single process there
    is nothing to average, and the callback does nothing.

    If `configure_optimizers` returns an SGD, its momentum and weight decay move to the memory when
    `fit` begins, as in `ddp_hook`; if they cannot, a warning gives the reason.

    Args:
        code: a codec, or its specification such as "svd(rank=3)"; None with `recipe`.
        options: see `HookOptions`.

    Returns:
        The callback. From the beginning of `fit`, its `exchange` is the state that `ddp_hook`
        returns, or None in a single process. `fit` raises the errors of `ddp_hook`.

    Raises:
        TypeError: the keyword of an option is unknown.
        ConfigError: an option is invalid, or Lightning is not installed.
    """
    check_callback(code)
    attachment = HookAttachment(config_of(code, options), options.get("timeout_s"))
    return callback_class(package())(attachment)


def package() -> str:
    """Returns the package name under which Lightning is imported, else one that is installed."""
    for name in sorted(PACKAGES, key=lambda name: name not in sys.modules):
        try:
            import_module(name)
        except ImportError:
            continue
        return name
    raise MissingPackage(
        f"the callback needs the package lightning; `{install_command('lightning')}` brings it"
    )


@cache
def callback_class(name: str) -> Any:
    """Creates the class of the callback, a subclass of the `Callback` of the package."""

    class Compressing(import_module(name).Callback):  # type: ignore[misc]
        """Attaches the hook to the model at the beginning of each fit."""

        def __init__(self, attachment: HookAttachment) -> None:
            self.exchange: Exchange | None = None
            self._attachment = attachment
            self._loaded: dict[str, Any] = {}  # the state in a checkpoint, until there is a hook
            self._healthy = True  # False after an error on this rank

        @property
        def state_key(self) -> str:
            return KEY

        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            self._healthy = True
            if trainer.world_size > 1:
                scaler = getattr(trainer.precision_plugin, "scaler", None)
                ddp = wrapped(trainer.strategy)
                self.exchange = self._attachment.attach(ddp, scaler, trainer.optimizers)
            self._load()

        def on_train_batch_start(self, trainer: Any, *about: Any) -> None:
            for optimizer in trainer.optimizers[:1]:
                self._attachment.at_rate(optimizer.param_groups[0]["lr"])

        def on_exception(self, *about: Any) -> None:
            self._healthy = False  # a gather would wait for ranks that have not failed

        def state_dict(self) -> dict[str, Any]:
            if self.exchange is None or not self._healthy:
                return self._loaded
            return self.exchange.gather() or {}  # rank 0 writes the checkpoint

        def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
            if KEY not in checkpoint["callbacks"] and trainer.world_size > 1:
                warn_of_nothing("the checkpoint")

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            self._loaded = state_dict
            self._load()

        def _load(self) -> None:
            if self._loaded and self.exchange is not None:
                self.exchange.load_state_dict(self._loaded)
                self._loaded = {}

    return Compressing


def wrapped(strategy: Any) -> DistributedDataParallel:
    """Returns the wrapped model of a strategy."""
    model = strategy.model
    if not isinstance(model, DistributedDataParallel):
        raise ConfigError(
            f"the callback is for Trainer(strategy='ddp'), and {type(strategy).__name__} trains a "
            f"{type(model).__name__}"
        )
    return model
