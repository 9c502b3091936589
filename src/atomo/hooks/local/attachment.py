"""Attachment of local steps to the model and the optimizer of a framework."""

from collections.abc import Iterable
from typing import Any, final

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from atomo.codecs import Codec
from atomo.errors import ConfigError
from atomo.exchange.collectives.collective import Collective
from atomo.exchange.collectives.torch_distributed import TorchCollective
from atomo.hooks.gradient_owners import OPTIMIZERS
from atomo.hooks.job import join_job
from atomo.hooks.local.building import make_replica
from atomo.hooks.local.config import local_config
from atomo.hooks.local.replica import LocalReplica
from atomo.hooks.local.silence import stop_averaging
from atomo.hooks.optimizer import stepped_by
from atomo.hooks.optimizers.momentum_transfer import inner_optimizer
from atomo.hooks.options.hook_options import LocalStepsOptions

__all__ = ["LocalStepsAttachment"]


@final
class LocalStepsAttachment:
    """The replica of a framework's model, which exchanges after steps of the framework's optimizer.

    The framework keeps its optimizer: a hook of the inner optimizer counts the steps.
    """

    def __init__(self, code: str | Codec[Any] | None, options: LocalStepsOptions) -> None:
        """Creates an attachment without a model.

        Raises:
            ConfigError: an option is invalid, or options contradict each other.
        """
        self._config = local_config(code, options)
        self._config.hook.check()
        self._replica: LocalReplica | None = None
        self._handles: list[Any] = []
        self._own: dict[str, Any] = {}  # the weights of the replica while the model has the anchor

    @property
    def replica(self) -> LocalReplica:
        """The replica, with `exchange`, `steps` and `anchor()`.

        Raises:
            ConfigError: the framework has not begun to train.
        """
        if self._replica is None:
            raise ConfigError(
                "local steps begin when the framework trains: there is no replica yet"
            )
        return self._replica

    def attach(self, model: nn.Module, optimizers: Iterable[object]) -> LocalReplica:
        """Begins the first round of a model. All ranks call this together.

        An earlier replica of this attachment ends.

        Args:
            model: the model, or the DistributedDataParallel that has it.
            optimizers: the optimizers of the framework, of which one steps the model.

        Raises:
            ConfigError: none or several step the model; otherwise as from `local_steps`.
        """
        self.detach()
        ddp = model if isinstance(model, DistributedDataParallel) else None
        plain: nn.Module = model if ddp is None else ddp.module
        inner = the_optimizer_of(plain, optimizers)
        timeout_s = self._config.timeout_s
        ranks = (
            join_job(timeout_s) if ddp is None else TorchCollective(ddp.process_group, timeout_s)
        )
        replica = make_replica(self._config, ranks, plain, inner)
        if ddp is not None:
            stop_averaging(ddp)
        self._handles.append(inner.register_step_post_hook(replica.after_step))
        OPTIMIZERS.add(replica, stepped_by(inner, plain).values())
        self._replica = replica
        return replica

    def _ranks(self, ddp: DistributedDataParallel | None) -> Collective:
        """Returns the ranks of a DistributedDataParallel, or those of the job."""
        timeout_s = self._config.timeout_s
        return join_job(timeout_s) if ddp is None else TorchCollective(ddp.process_group, timeout_s)

    def detach(self) -> None:
        """Ends the rounds of the present replica, if there is one."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._own, self._replica = [], {}, None

    def show_anchor(self) -> None:
        """Puts the anchor into the model until `hide_anchor`, to evaluate it or to save it."""
        if not self._own:
            self._own = self.replica.weights()
            self.replica.restore_anchor()

    def hide_anchor(self) -> None:
        """Puts the weights of the replica back, if `show_anchor` has replaced them."""
        if self._own:
            self.replica.load_weights(self._own)
            self._own = {}

    def end(self, *, keep: bool = False) -> None:
        """Leaves the anchor in the model at the end of training.

        Args:
            keep: True if the framework has loaded other weights into the model.
        """
        self._own = {}
        if not keep:
            self.replica.restore_anchor()


def the_optimizer_of(model: nn.Module, optimizers: Iterable[object]) -> Optimizer:
    """Returns the optimizer that steps the parameters of a model.

    Raises:
        ConfigError: there is none, or there are several.
    """
    parameters = set(model.parameters())
    inner = [inner_optimizer(optimizer) for optimizer in optimizers]
    own = [single for single in inner if parameters & stepped(single)]
    if len(own) != 1:
        raise ConfigError(
            f"local steps need one optimizer for a model, and {len(own)} step it: with several, "
            "such as Muon and AdamW, use atomo.local_steps in a loop of your own"
        )
    return own[0]


def stepped(optimizer: Optimizer) -> set[Any]:
    """Returns the parameters of an optimizer."""
    return {parameter for group in optimizer.param_groups for parameter in group["params"]}
