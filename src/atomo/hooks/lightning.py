"""Lightning: a callback, whose state is in Lightning's own checkpoints."""

import sys
from functools import cache
from importlib import import_module
from typing import Any, Final

from torch.nn.parallel import DistributedDataParallel

from atomo.codecs import Codec
from atomo.core.distribution import install_command
from atomo.errors import ConfigError
from atomo.hooks.adapter.dense import DensePolicy
from atomo.hooks.adapter.exchange import Exchange
from atomo.hooks.attachment import HookAttachment, warn_of_nothing
from atomo.hooks.hook_config import HookConfig
from atomo.hooks.option_checks import check_callback, host_rule
from atomo.hooks.recipe_coding import coding
from atomo.memory import Memory
from atomo.wire import Compression

__all__ = ["lightning_callback"]

PACKAGES: Final = ("lightning.pytorch", "pytorch_lightning")  # the same, under two names
KEY: Final = "atomo"  # not the name of a class: checkpoints outlive it


def lightning_callback(
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
) -> Any:
    """Compresses the gradients of a Lightning Trainer with strategy "ddp", on any device.

        callback = atomo.lightning_callback("topk(ratio=0.01)")
        Trainer(strategy="ddp", callbacks=[callback])

    Lightning's checkpoints then have what all ranks keep back, gathered at rank 0; one without it
    begins with nothing. Its `precision`, `accumulate_grad_batches` and clipping stay as they are.
    One process alone has nothing to average.

    Momentum and weight decay of an SGD, which `configure_optimizers` has made when `fit` begins,
    move into the memory, as with `ddp_hook`; where they cannot, a warning says why.

    Args:
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
        The callback: `callback.exchange` is what `ddp_hook` calls the state, from the beginning of
        `fit`, which raises ConfigError as `ddp_hook` does; None in a process alone.

    Raises:
        ConfigError: Lightning is not installed.
    """
    check_callback(code)
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
    return kind_of(package())(attachment)


def package() -> str:
    """Returns the package name under which the caller has Lightning, or else an installed one."""
    for name in sorted(PACKAGES, key=lambda name: name not in sys.modules):
        try:
            import_module(name)
        except ImportError:
            continue
        return name
    raise ConfigError(
        f"the callback needs the package lightning; `{install_command('lightning')}` brings it"
    )


@cache
def kind_of(name: str) -> Any:
    """Makes the callback's class. Lightning wants a subclass of its own, which is imported here."""

    class Compressing(import_module(name).Callback):  # type: ignore[misc]
        """Hooks the model at the beginning of each fit."""

        def __init__(self, attachment: HookAttachment) -> None:
            self.exchange: Exchange | None = None
            self._attachment = attachment
            self._found: dict[str, Any] = {}  # in a checkpoint, until there is a hook
            self._together = True  # whether all ranks are there to gather

        @property
        def state_key(self) -> str:
            return KEY

        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            self._together = True
            if trainer.world_size > 1:
                scaler = getattr(trainer.precision_plugin, "scaler", None)
                ddp = wrapped(trainer.strategy)
                self.exchange = self._attachment.attach(ddp, scaler, trainer.optimizers)
            self._load()

        def on_train_batch_start(self, trainer: Any, *about: Any) -> None:
            for optimizer in trainer.optimizers[:1]:
                self._attachment.at_rate(optimizer.param_groups[0]["lr"])

        def on_exception(self, *about: Any) -> None:
            self._together = False  # a rank that failed alone would wait for the others

        def state_dict(self) -> dict[str, Any]:
            if self.exchange is None or not self._together:
                return self._found
            return self.exchange.gather() or {}  # rank 0 writes the checkpoint

        def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
            if KEY not in checkpoint["callbacks"] and trainer.world_size > 1:
                warn_of_nothing("the checkpoint")

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            self._found = state_dict
            self._load()

        def _load(self) -> None:
            if self._found and self.exchange is not None:
                self.exchange.load_state_dict(self._found)
                self._found = {}

    return Compressing


def wrapped(strategy: Any) -> DistributedDataParallel:
    """Returns the model as a strategy has wrapped it."""
    model = strategy.model
    if not isinstance(model, DistributedDataParallel):
        raise ConfigError(
            f"the callback is for Trainer(strategy='ddp'), and {type(strategy).__name__} trains a "
            f"{type(model).__name__}"
        )
    return model
