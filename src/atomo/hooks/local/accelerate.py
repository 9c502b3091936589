"""Local steps in Hugging Face Accelerate."""

from collections.abc import MutableMapping
from pathlib import Path
from typing import Any, final

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from typing_extensions import Unpack

from atomo.codecs import Codec
from atomo.errors import ConfigError
from atomo.hooks.accelerate import check_distributed
from atomo.hooks.attachment import warn_of_nothing
from atomo.hooks.local.attachment import LocalStepsAttachment
from atomo.hooks.local.files import load_replica, save_replica
from atomo.hooks.options.checks import check_accelerator
from atomo.hooks.options.hook_options import LOCAL_DEFAULTS, LocalStepsOptions, takes_options

__all__ = ["accelerate_local_steps"]


@takes_options(LocalStepsOptions, **LOCAL_DEFAULTS)
def accelerate_local_steps(
    accelerator: Any,
    model: nn.Module,
    code: str | Codec[Any] | None = None,
    **options: Unpack[LocalStepsOptions],
) -> LocalStepsAttachment:
    """Has a model that an Accelerator has prepared take local steps, as `local_steps` does.

        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        local = atomo.accelerate_local_steps(accelerator, model, "topk(ratio=0.01)", every=30)

    Every rank must call this after `prepare`. One prepared optimizer steps the model. Mixed
    precision, `accumulate` and clipping work as without it. `save_state` saves the anchor as the
    weights of the model, and a file for each rank with its own weights, its moments and its memory;
    `load_state` continues in the middle of the round.

    Args:
        accelerator: the Accelerator of the replicas, which has prepared one model.
        model: the prepared model.
        code: the codec of differences, or its specification; None with `recipe`.
        options: see `LocalStepsOptions`.

    Returns:
        The attachment; its `replica` has `exchange`, `steps` and `anchor()`, for evaluation.

    Raises:
        TypeError: the keyword of an option is unknown.
        ConfigError: as from `local_steps`; or the model is not prepared, it is one of several, or
            its gradients are averaged by something other than DistributedDataParallel.
    """
    check_accelerator(accelerator, code)
    check_distributed(accelerator)
    check_prepared(accelerator, model)
    attachment = LocalStepsAttachment(code, options)
    replica = attachment.attach(model, accelerator._optimizers)  # no public attribute has them
    checkpoints = AnchorCheckpoints(attachment, replica.optimizer)
    accelerator.register_save_state_pre_hook(checkpoints.save)
    accelerator.register_load_state_pre_hook(checkpoints.load)
    return attachment


def check_prepared(accelerator: Any, model: object) -> None:
    """Raises ConfigError for a model that the Accelerator has not prepared, or one of several."""
    prepared = len(accelerator._models)
    alone = accelerator.num_processes == 1
    if prepared != 1 or not isinstance(model, nn.Module if alone else DistributedDataParallel):
        raise ConfigError(
            f"the Accelerator has {prepared} prepared models, and a {type(model).__name__} was "
            "given: call accelerate_local_steps(accelerator, model, code) with the one model that "
            "accelerator.prepare has returned"
        )


@final
class AnchorCheckpoints:
    """Hooks of an Accelerator's checkpoints."""

    def __init__(self, attachment: LocalStepsAttachment, optimizer: Optimizer) -> None:
        self._attachment = attachment
        self._moments: dict[str, Any] = {}  # of this rank, until the optimizer has those of rank 0
        optimizer.register_load_state_dict_post_hook(self._load_moments)

    def save(
        self, models: list[Any], weights: list[MutableMapping[str, Tensor]], folder: str
    ) -> None:
        """Writes the state of this rank, and has the Accelerator save the anchor."""
        replica = self._attachment.replica
        save_replica(replica, Path(folder))
        with replica.anchor():  # the entries of `weights` are views of the model
            for entries in weights[:1]:
                for name, tensor in entries.items():
                    entries[name] = tensor.clone()

    def load(self, models: list[Any], folder: str) -> None:
        """Loads the state of this rank, in place of the weights that the Accelerator has saved."""
        state = load_replica(self._attachment.replica, Path(folder))
        if state is None:
            warn_of_nothing(folder)
            return
        models.clear()  # the Accelerator loads the others
        self._moments = state["optimizer"]

    def _load_moments(self, optimizer: Optimizer) -> None:
        """Replaces the moments of rank 0, which the Accelerator loads on all ranks."""
        moments, self._moments = self._moments, {}
        if moments:
            optimizer.load_state_dict(moments)
