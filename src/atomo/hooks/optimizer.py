"""Optimizers that step with the average of the compressed gradients of all ranks."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, final

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from typing_extensions import Unpack

from atomo.codecs import Codec
from atomo.errors import ConfigError
from atomo.exchange.collectives.collective import Collective
from atomo.fusion import plan
from atomo.hooks.adapter.chunks import Chunk
from atomo.hooks.adapter.exchange import Exchange
from atomo.hooks.gradient_owners import HOOKS, OPTIMIZERS
from atomo.hooks.job import join_job
from atomo.hooks.optimizers.adam import PlainStep, move_adam, warn_of_drawn_atoms
from atomo.hooks.optimizers.momentum_transfer import inner_optimizer, move_momentum
from atomo.hooks.optimizers.momentum_watch import MomentumWatch, watch_momentum
from atomo.hooks.optimizers.noise_damping import damp, release, resolve_damping
from atomo.hooks.options.checks import (
    check_bucket_mb,
    check_optimizer,
    check_scaler,
)
from atomo.hooks.options.hook_config import make_exchange
from atomo.hooks.options.hook_options import OptimizerOptions, takes_options
from atomo.hooks.options.resolve import config_of
from atomo.hooks.replicas import replicate
from atomo.options.grouping import megabytes

__all__ = ["JOB_TIMEOUT_S", "AveragedOptimizer", "stepped_by", "wrap_optimizer"]

JOB_TIMEOUT_S: Final = 300.0
ADVICE: Final = "memory='auto' moves it into the memory, which applies it before the codec"


@takes_options(OptimizerOptions, timeout_s=JOB_TIMEOUT_S)
def wrap_optimizer(
    optimizer: Optimizer,
    model: nn.Module,
    code: str | Codec[Any] | None = None,
    *,
    bucket_mb: float = 4.0,
    scaler: GradScaler | None = None,
    collective: Collective | None = None,
    **options: Unpack[OptimizerOptions],
) -> "AveragedOptimizer":
    """Wraps an optimizer so that `step` first averages the gradients of all ranks, compressed.

        optimizer = atomo.wrap_optimizer(torch.optim.SGD(...), model, "topk(ratio=0.01)")

    Use this in a training loop without DistributedDataParallel, in each process of a job launched
    by `torchrun` or `mpirun`, or in a single process. The call broadcasts the weights of rank 0;
    all ranks keep the same weights, bit for bit.

    The parameter groups are those of the wrapped optimizer, so that learning rates, schedulers,
    momentum and weight decay work as before, with one exception. Momentum on top of error feedback
    diverges. So if the codec needs a memory and the optimizer has momentum, `memory="auto"` moves
    momentum and weight decay to a memory that applies them before the codec; so does a memory with
    momentum that you choose. The parameter groups then have neither; `state_dict` has both.

    Adam divides a value that a memory sends late by the magnitude of that value. With Adam or
    AdamW, and a codec that was measured to lose less this way ("topk", "efsignsgd", "onebit"),
    `memory="auto"` chooses memory "adam": each rank computes the update with the betas and the eps
    of the optimizer, and compresses the update; `step` subtracts the average times the learning
    rate, and applies the weight decay of AdamW. The moments are then in `exchange.state_dict()`.
    `memory="residual"` compresses gradients instead.

    Args:
        optimizer: the optimizer of parameters of `model`, with all its parameter groups.
        model: the model.
        code: a codec, or its specification such as "svd(rank=3)"; None with `recipe`.
        bucket_mb: the size of a bucket, in MB of gradient.
        scaler: the gradient scaler of the loss; call `average` before `scaler.step`.
        collective: the ranks; None: all ranks of the job.
        options: see `HookOptions`.

    Returns:
        The optimizer for the training loop. Its `exchange` has the memories and `stats`.

    Raises:
        TypeError: the keyword of an option is unknown.
        ConfigError: an option is invalid, the memory does not suit the codec, the optimizer has
            parameters that are not the model's, a hook or another wrapped optimizer averages a
            parameter already, or ranks passed different arguments.
    """
    check_optimizer(optimizer, model, code)
    check_scaler(scaler)
    check_bucket_mb(bucket_mb)
    if isinstance(optimizer, AveragedOptimizer):
        raise ConfigError("the optimizer is wrapped already, and would average twice")
    skips = scaler is not None and scaler.is_enabled()
    config = config_of(code, options, skips=skips, bucket_mb=bucket_mb)
    parameters = free_parameters(optimizer, model)
    inner = inner_optimizer(optimizer)
    config, plain = move_adam(config, inner, scaled=skips)
    config, moved = move_momentum(config, [inner], parameters.values())
    config, damped = resolve_damping(config, [inner], parameters.values())
    if collective is None:
        collective = join_job(options.get("timeout_s") or JOB_TIMEOUT_S)
    decay = moved.decay(parameters) if plain is None else plain.decay(parameters)
    exchange = make_exchange(config, collective, parameters, decay=decay)
    warn_of_drawn_atoms(config, [inner], exchange.rank)
    moved.take()
    release([inner])
    damp(damped, exchange.meter)
    replicate(model, collective)
    buckets = grouped(parameters, config.codec, bucket_mb)
    watch = watch_momentum(config, moved, exchange.rank, parameters.values(), ADVICE)
    enabled = scaler if skips else None
    averaged = AveragedOptimizer(optimizer, exchange, buckets, watch, enabled, plain)
    OPTIMIZERS.add(averaged, parameters.values())
    return averaged


def free_parameters(optimizer: Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Returns the parameters that an optimizer steps, by name.

    Raises:
        ConfigError: a hook or another wrapped optimizer averages a parameter already.
    """
    parameters = trained(optimizer, model)
    for owners in (OPTIMIZERS, HOOKS):
        owners.check_free(parameters.values())
    return parameters


@final
class AveragedOptimizer(Optimizer):
    """An optimizer that averages gradients before it steps. All state is the wrapped optimizer's.

    It is a subclass of Optimizer because schedulers and scalers require one.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        exchange: Exchange,
        buckets: Sequence[Mapping[str, Tensor]],
        watch: MomentumWatch | None,
        scaler: GradScaler | None,
        plain: PlainStep | None = None,
    ) -> None:
        # Optimizer.__init__ would create parameter groups and state that are never used.
        self.optimizer = optimizer
        self.exchange = exchange
        self._buckets, self._watch, self._scaler = buckets, watch, scaler
        self._averaged, self._plain = False, plain

    def __getattr__(self, name: str) -> Any:
        """Returns `param_groups`, `state`, `defaults` and hooks of the wrapped optimizer."""
        return getattr(self.__dict__["optimizer"], name)

    def average(self) -> None:
        """Replaces the gradients by their average over all ranks. The next `step` then does not.

        Call it before operations on averaged gradients: clipping, `scaler.unscale_` and
        `scaler.step`. A parameter without gradient counts as a gradient of zeros, on all ranks.

        Raises:
            AtomoError: the average failed, on this rank or another.
        """
        self.exchange.at_rate(self.param_groups[0]["lr"])
        scale = 1.0 if self._scaler is None else self._scaler.get_scale()
        for number, bucket in enumerate(self._buckets):
            gradients = {name: gradient_of(parameter) for name, parameter in bucket.items()}
            last = number + 1 == len(self._buckets)
            self.exchange.submit(Chunk(number, gradients), scale, last, lambda: None)
        self.exchange.finish()
        self._averaged = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Averages, unless `average` has done so, and takes the step of the wrapped optimizer."""
        if closure is not None:
            with self._updating():
                return self.optimizer.step(lambda: self._after(closure))
        if not self._averaged and self._scaler is not None:
            raise ConfigError(
                "with a scaler, call average() before scaler.step(), which skips this step on a "
                "rank that has infinite gradients: the other ranks would wait for that rank"
            )
        if not self._averaged:
            self.average()
        self._averaged = False
        with self._updating():
            self._update()
            return self.optimizer.step()

    def _after(self, closure: Callable[[], Any]) -> Any:
        loss = closure()
        self.average()
        self._averaged = False
        self._update()
        return loss

    def _update(self) -> None:
        """Applies the update, if the memory computes it."""
        if self._plain is not None:
            self._plain.take()

    @contextmanager
    def _updating(self) -> Iterator[None]:
        """Restores the gradients after the step; `_update` hides them from the optimizer."""
        try:
            yield
        finally:
            if self._plain is not None:
                self._plain.put_back()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients."""
        self._averaged = False
        self.optimizer.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the wrapped optimizer; `exchange.state_dict()` has the memories."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state of `state_dict`."""
        self.optimizer.load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raises ConfigError: ranks agreed on the parameters when the optimizer was wrapped."""
        raise ConfigError("add all groups of parameters before wrap_optimizer")

    def __repr__(self) -> str:
        return f"AveragedOptimizer({self.optimizer!r})"


def trained(optimizer: Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Returns the parameters that an optimizer steps, none of which is sharded, by name."""
    parameters = stepped_by(optimizer, model)
    check_whole(parameters)
    return parameters


def stepped_by(optimizer: Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Returns the parameters that an optimizer steps, by their names in the model.

    Raises:
        ConfigError: the optimizer has parameters that are not the model's.
    """
    stepped = {p for group in optimizer.param_groups for p in group["params"] if p.requires_grad}
    parameters: dict[str, Tensor] = {n: p for n, p in model.named_parameters() if p in stepped}
    if len(parameters) < len(stepped):
        raise ConfigError(
            f"{len(stepped) - len(parameters)} of the optimizer's {len(stepped)} parameters are "
            "not the model's"
        )
    return parameters


def check_whole(parameters: Mapping[str, Tensor]) -> None:
    """Raises ConfigError for a sharded parameter."""
    for name, parameter in parameters.items():
        if hasattr(parameter, "device_mesh"):  # DTensor itself is slow to import
            raise ConfigError(
                f"parameter {name} is sharded, and wrap_optimizer averages whole gradients: give "
                "atomo.fsdp_hook(model, code, replicas)"
            )


def grouped(
    parameters: Mapping[str, Tensor], codec: Codec[Any], bucket_mb: float
) -> list[dict[str, Tensor]]:
    """Returns the parameters of each bucket, last first, in the order of the backward pass."""
    shapes = [(name, parameter.shape) for name, parameter in parameters.items()]
    buckets = plan(shapes, codec, megabytes(bucket_mb))
    return [{slot.name: parameters[slot.name] for slot in bucket.slots} for bucket in buckets]


def gradient_of(parameter: Tensor) -> Tensor:
    """Returns the gradient of a parameter; if there is none, creates a gradient of zeros."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    if parameter.grad.is_sparse:
        raise ConfigError("sparse gradients are not supported: use an Embedding with sparse=False")
    return parameter.grad
