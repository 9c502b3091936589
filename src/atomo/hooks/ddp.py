"""Compressed gradients in PyTorch's DistributedDataParallel: a communication hook."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, Final, final

import torch
from torch import Size, Tensor
from torch._C._distributed_c10d import GradBucket
from torch.amp.grad_scaler import GradScaler
from torch.autograd import Variable
from torch.distributed import ProcessGroup
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from typing_extensions import Unpack

from atomo.codecs import Codec
from atomo.errors import ConfigError
from atomo.exchange.collectives.meeting import SOON_S
from atomo.exchange.collectives.torch_distributed import TorchCollective
from atomo.hooks.adapter.chunks import Chunk
from atomo.hooks.adapter.exchange import Exchange
from atomo.hooks.gradient_owners import HOOKS, OPTIMIZERS
from atomo.hooks.optimizers.adam import warn_of_adam, warn_of_drawn_atoms
from atomo.hooks.optimizers.momentum_transfer import as_optimizers, move_momentum
from atomo.hooks.optimizers.momentum_watch import MomentumWatch, watch_momentum
from atomo.hooks.optimizers.noise_damping import damp, release, resolve_damping
from atomo.hooks.options.checks import (
    check_group,
    check_model,
    check_scaler,
    check_timeout,
)
from atomo.hooks.options.hook_config import HookConfig, make_exchange
from atomo.hooks.options.hook_options import HookOptions, takes_options
from atomo.hooks.options.resolve import config_of
from atomo.hooks.states.bucket_layout import BucketLayout

__all__ = ["ADVICE", "Hook", "averaged_by", "ddp_hook", "hook_of"]

ADVICE: Final = "give optimizer=... to the hook, with memory='auto', which moves it into the memory"
MOST_SHAPES: Final = 4096  # in the cache
Hook = Callable[[Exchange, GradBucket], Future[Tensor]]


@takes_options(HookOptions)
def ddp_hook(
    ddp: DistributedDataParallel,
    code: str | Codec[Any] | None = None,
    *,
    optimizer: Optimizer | None = None,
    process_group: ProcessGroup | None = None,
    scaler: GradScaler | None = None,
    **options: Unpack[HookOptions],
) -> tuple[Exchange, Hook]:
    """Creates a communication hook that compresses the gradients of a DistributedDataParallel.

        state, hook = atomo.ddp_hook(ddp, "topk(ratio=0.01)", optimizer=optimizer)
        ddp.register_comm_hook(state, hook)

    Every rank must call this function with the same arguments, and register the hook. If the state
    is not needed later, `ddp.register_comm_hook(*atomo.ddp_hook(...))` does both. Background
    threads encode, exchange and decode each bucket while the backward pass continues. All ranks get
    the same averaged gradients, bit for bit. `backward()` raises the errors of the threads.

    A gradient that is zero in all elements, such as that of a parameter that DDP found to be
    unused, is not sent, and its memory does not change. The same holds for the gradients of ranks
    that have called `join`. The average is over all ranks, as with DDP's
    `divide_by_initial_world_size`.

    SGD momentum on top of error feedback repeats updates that the memory has already delivered.
    Pass `optimizer` to avoid this: `memory="auto"` then chooses a memory that applies momentum
    before the codec ("dgc"), and the hook moves momentum and weight decay from the parameter groups
    of the optimizer to this memory. `optimizer.state_dict()` still has both. Without `optimizer`,
    the first step of such an SGD warns. A hook cannot compute the update of Adam; `wrap_optimizer`
    can, and then loses less accuracy.

    Args:
        ddp: the wrapped model. The hook averages the gradients of the parameters that require a
            gradient now.
        code: a codec, or its specification such as "svd(rank=3)". "powersgd(rank=4)" and
            "acpsgd(rank=4)" sum low-rank factors, and "chunked(ratio=0.01, chunk=64)" is
            `chunktopk` with the same chunks on all ranks. None with `recipe`.
        optimizer: the optimizer of these parameters, with all its parameter groups; any of
            torch.optim.
        process_group: the process group that averages; None: that of DDP. The hook creates groups
            of its own with the same ranks. PyTorch numbers groups in order, so if the group is only
            a part of all ranks, the other ranks must create as many.
        scaler: the gradient scaler of the loss, which must serve one optimizer. Memories then store
            unscaled values. If a gradient is not finite on one rank, it is not finite on any: all
            scalers skip the step, and memories stay as they were. Without a scaler, a gradient that
            is not finite is an error.
        options: see `HookOptions`.

    Returns:
        The state and the hook. The state has `state_dict`, `load_state_dict` and `gather` for
        checkpoints, and `stats` with bytes and seconds.

    Raises:
        TypeError: the keyword of an option is unknown.
        ConfigError: an option is invalid, the memory does not suit the codec or does not apply the
            momentum, the model has a hook already, a wrapped optimizer averages its gradients, or
            ranks passed different arguments.
    """
    check_model(ddp, code)
    check_scaler(scaler)
    skips = scaler is not None and scaler.is_enabled()
    config = config_of(code, options, skips=skips)
    enabled, optimizers = scaler if skips else None, as_optimizers(config, optimizer)
    warn_of_adam(config, optimizers, ddp.process_group.rank())
    warn_of_drawn_atoms(config, optimizers, ddp.process_group.rank())
    return hook_of(ddp, config, enabled, process_group, options.get("timeout_s"), optimizers)


def hook_of(
    ddp: DistributedDataParallel,
    config: HookConfig,
    scaler: GradScaler | None,
    process_group: ProcessGroup | None,
    timeout_s: float | None,
    optimizers: Sequence[Optimizer] = (),
    advice: str = ADVICE,
) -> tuple[Exchange, Hook]:
    """Creates the state and the hook of `ddp_hook` from a configuration.

    Args:
        ddp: the wrapped model.
        config: how gradients are averaged.
        scaler: the gradient scaler of the loss, if there is one and it is enabled.
        process_group: as in `ddp_hook`.
        timeout_s: as in `ddp_hook`.
        optimizers: the optimizers with momentum that may move to the memory.
        advice: the advice in a warning about SGD momentum on top of error feedback.

    Raises:
        ConfigError: as from `ddp_hook`.
    """
    check_model(ddp)
    check_group(process_group)
    check_timeout(timeout_s)
    parameters = averaged_by(ddp)
    OPTIMIZERS.check_free(parameters.values())
    config, moved = move_momentum(config, optimizers, parameters.values())
    config, damped = resolve_damping(config, optimizers, parameters.values())
    config = replace(config, bucket_cap_mb=caps_of(ddp))
    group = ddp.process_group if process_group is None else process_group
    layout = BucketLayout(parameters)
    # All ranks have just created the DDP, so the wait for the last of them is short.
    collective = TorchCollective(group, timeout_s, come_s=SOON_S)
    exchange = make_exchange(config, collective, parameters, layout, moved.decay(parameters))
    moved.take()
    release(optimizers)
    damp(damped, exchange.meter)
    HOOKS.add(ddp, parameters.values())
    watch = watch_momentum(config, moved, exchange.rank, parameters.values(), advice)
    return exchange, BucketHook(exchange, scaler, layout, watch).average


def caps_of(ddp: DistributedDataParallel) -> str:
    """Returns the sizes of DDP's buckets in MiB; equal sizes give equal buckets."""
    caps = [ddp.bucket_bytes_cap, *getattr(ddp, "bucket_bytes_cap_list", [])]
    return ", ".join(f"{cap / 2**20:g}" for cap in caps[len(caps) > 1 :])


def averaged_by(ddp: DistributedDataParallel) -> dict[str, Tensor]:
    """Returns the parameters with gradients that DDP averages, by name."""
    return {n: p for n, p in ddp.module.named_parameters() if p.requires_grad}


@final
class BucketHook:
    """The hook of one DDP."""

    def __init__(
        self,
        exchange: Exchange,
        scaler: GradScaler | None,
        layout: BucketLayout,
        watch: MomentumWatch | None,
    ) -> None:
        self._exchange, self._scaler = exchange, scaler
        self._layout, self._watch = layout, watch
        self._scale = 1.0

    def average(self, state: Exchange, bucket: GradBucket) -> Future[Tensor]:
        """Starts the average of a bucket; the future returns its buffer, which has the average."""
        check_bucket(bucket)
        check_state(state is self._exchange)
        if self._scaler is not None and state.idle:
            self._scale = self._scaler.get_scale()
        buffer = bucket.buffer()
        future: Future[Tensor] = Future(devices=[] if buffer.is_cpu else [buffer.device])
        chunk = chunk_of(bucket, buffer, state)
        whole = partial(future.set_result, buffer)
        for submission in self._layout.submissions(chunk, bucket.is_last(), whole):
            state.submit(submission.chunk, self._scale, submission.last, submission.done)
        finish_with_backward(state)
        return future


def check_bucket(bucket: object) -> None:
    """Raises ConfigError for a bucket of torch.compile's Python reducer."""
    if isinstance(bucket, tuple):
        raise ConfigError(
            "torch.compile's Python reducer does not say which parameters a bucket has: set "
            "torch._dynamo.config.optimize_ddp to True or False, not 'python_reducer'"
        )


def check_state(own: bool) -> None:
    """Raises ConfigError if a hook was registered with the state of another hook."""
    if not own:
        raise ConfigError(
            "register_comm_hook was given the state or the hook of another model: each "
            "DistributedDataParallel takes the state and the hook of its own ddp_hook, such as "
            "ddp.register_comm_hook(*atomo.ddp_hook(ddp, code))"
        )


def chunk_of(bucket: GradBucket, buffer: Tensor, state: Exchange) -> Chunk:
    """Returns views of the gradients in a bucket of DDP."""
    if buffer.is_sparse:
        raise ConfigError("sparse gradients are not supported: use an Embedding with sparse=False")
    gradients, start = {}, buffer.storage_offset()
    for parameter in bucket.parameters():
        stride = stride_in(parameter.shape, parameter.stride())
        view = buffer.as_strided(parameter.shape, stride, start)
        check_state(parameter in state.names)
        gradients[state.names[parameter]] = view
        start += parameter.numel()
    return Chunk(bucket.index(), gradients, buffer)


@lru_cache(MOST_SHAPES)
def stride_in(shape: Size, strides: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the strides in DDP of the gradient of a parameter with this shape and these strides.

    They are the strides of the parameter, unless that has gaps.
    """
    parameter = torch.empty_strided(shape, strides, device="meta")
    alike = torch.empty_like(parameter).stride()
    if alike == strides:
        return alike
    return torch.empty(shape, device="meta").stride()


def finish_with_backward(state: Exchange) -> None:
    """Makes the current backward pass wait for the averages at its end, and raise their errors.

    DDP would replace the error of a future by an error of another class.
    """
    try:
        Variable._execution_engine.queue_callback(state.finish)
    except RuntimeError:  # no backward pass runs: this rank has joined
        state.finish()
