"""Compressed gradients in PyTorch's DistributedDataParallel: a communication hook."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, final

import torch
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.amp.grad_scaler import GradScaler
from torch.autograd import Variable
from torch.distributed import ProcessGroup
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from atomo.codecs import Codec
from atomo.errors import ConfigError
from atomo.hooks.adapter.chunks import Chunk
from atomo.hooks.adapter.collective import TorchCollective
from atomo.hooks.adapter.dense import DensePolicy
from atomo.hooks.adapter.exchange import Exchange
from atomo.hooks.adapter.meeting import SOON_S
from atomo.hooks.gradient_owners import HOOKS, OPTIMIZERS
from atomo.hooks.hook_config import HookConfig, make_exchange
from atomo.hooks.optimizers.adam import warn_of_adam
from atomo.hooks.optimizers.momentum_transfer import given_optimizers, move_momentum
from atomo.hooks.optimizers.momentum_watch import MomentumWatch
from atomo.hooks.optimizers.noise_damping import damp, release, resolve_damping
from atomo.hooks.option_checks import (
    check_group,
    check_model,
    check_scaler,
    check_timeout,
    host_rule,
)
from atomo.hooks.recipe_coding import coding
from atomo.hooks.states.bucket_layout import BucketLayout
from atomo.memory import Memory
from atomo.wire import Compression

__all__ = ["ADVICE", "Hook", "averaged_by", "ddp_hook", "hook_of"]

ADVICE: Final = "give optimizer=... to the hook, with memory='auto', which moves it into the memory"
Hook = Callable[[Exchange, GradBucket], Future[Tensor]]


def ddp_hook(
    ddp: DistributedDataParallel,
    code: str | Codec[Any] | None = None,
    *,
    optimizer: Optimizer | None = None,
    memory: str | Memory = "auto",
    momentum: float = 0.0,
    nesterov: bool = False,
    process_group: ProcessGroup | None = None,
    scaler: GradScaler | None = None,
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
) -> tuple[Exchange, Hook]:
    """Makes what `ddp.register_comm_hook` takes: gradients are compressed, and averaged bit for bit
    alike on all ranks.

        state, hook = atomo.ddp_hook(ddp, "topk(ratio=0.01)", optimizer=optimizer)
        ddp.register_comm_hook(state, hook)

    Where nobody asks for the state, `ddp.register_comm_hook(*atomo.ddp_hook(...))` is enough. The
    same on every rank, which all must make. Each bucket is encoded, gathered and decoded in
    threads while the backward pass goes on; errors come out of `backward()`.

    A gradient that is zero throughout, as DDP has it of parameters that were not used, takes no
    part: its memory is left alone. On ranks that have `join`ed that is all of them; the average is
    over all ranks, as with DDP's `divide_by_initial_world_size`.

    SGD's momentum on top of error feedback repeats updates that the memory has already delivered.
    With `optimizer`, "auto" then takes a memory that applies momentum before the codec ("dgc"), and
    momentum and weight decay move there, as with `wrap_optimizer`: the optimiser's groups have
    neither afterwards, its `state_dict` has both. Without, a warning says so at the first step of
    such an SGD. A hook cannot make Adam's update; `wrap_optimizer` can, and loses less.

    Args:
        ddp: the wrapped model; parameters that need a gradient are those it has now.
        optimizer: the one that steps these parameters; any of torch.optim, with all its groups.
        code: a codec, or its specification such as "svd(rank=3)"; or "powersgd(rank=4)" and
            "acpsgd(rank=4)", which sum factors in rounds of their own; or
            "chunked(ratio=0.01, chunk=64)", `chunktopk` of the chunks that all ranks agree on.
        memory: what each rank keeps back: "none", "residual", "dgc", "momentum", or "auto":
            `default_memory` of the codec and `momentum`; or a
            new object of `atomo.make_memory`, for this hook and rank alone.
        momentum: applied by a memory that takes momentum, where no `optimizer` is given; the
            optimiser then has none.
        nesterov: whether that is Nesterov's.
        process_group: of whose ranks; None: of DDP's. A group of its own is made like it. PyTorch
            numbers groups, so where it is only a part of all ranks, the others must make as many.
        scaler: where the loss is scaled. Memories then hold unscaled values; a gradient that is not
            finite on one rank is not finite on any, so that all scalers skip the step, and a
            skipped step leaves the memories as they were. It serves one optimiser. Without it such
            a gradient is an error.
        dense_below: parameters of fewer entries travel as float32, whatever the codec.
        dense_steps: in so many first steps all do.
        code_schedule: codecs that follow `code`, each from a step on, such as
            "1000: topk(ratio=0.05); 2000: topk(ratio=0.01)"; steps count from 0.
        recipe: a method as its paper ran it, such as "dgc", in the place of `code`: its codec,
            memory and schedule; its momentum must be that of the optimiser.
        steps_per_epoch: needed by recipes with a schedule of epochs, such as "dgc".
        warmup_steps: steps in which the ratio falls to its value, in four stages, as DGC's.
        hierarchical: gradients dense inside a host, compressed between hosts: "yes" (hosts by
            name), "no", or how many ranks count as one host.
        noise_damping: shorten steps of SGD by the measured noise of an unbiased codec, without
            memory, as runs do: the learning rate is scaled inside the optimiser's `step`. None:
            where that can be.
        seed: of what codecs draw.
        compression: blosc's settings for the frames.
        timeout_s: the longest wait for another rank, seconds; None: that of the process group.

    Returns:
        The state, whose `state_dict`, `load_state_dict` and `gather` are for checkpoints and whose
        `stats` are bytes and seconds; and the hook.

    Raises:
        ConfigError: a name is unknown, a memory does not suit the codec or does not apply the
            momentum, the model has a hook already, a wrapped optimiser averages its gradients, or
            the ranks do not say the same.
    """
    check_model(ddp, code)
    check_scaler(scaler)
    skips = scaler is not None and scaler.is_enabled()
    dense, hosts = DensePolicy(dense_below, dense_steps), host_rule(hierarchical)
    coded = coding(
        code, memory, code_schedule, recipe, steps_per_epoch, warmup_steps, momentum, nesterov
    )
    config = HookConfig(
        **coded,
        seed=seed,
        compression=compression,
        skips=skips,
        dense=dense,
        hierarchical=hosts,
        noise_damping=noise_damping,
    )
    enabled, optimizers = scaler if skips else None, given_optimizers(config, optimizer)
    warn_of_adam(config, optimizers, ddp.process_group.rank())
    return hook_of(ddp, config, enabled, process_group, timeout_s, optimizers)


def hook_of(
    ddp: DistributedDataParallel,
    config: HookConfig,
    scaler: GradScaler | None,
    process_group: ProcessGroup | None,
    timeout_s: float | None,
    optimizers: Sequence[Optimizer] = (),
    advice: str = ADVICE,
) -> tuple[Exchange, Hook]:
    """Makes the hook of `ddp_hook`, with the settings that all ranks have in common in one value.

    Args:
        ddp: the wrapped model.
        config: how gradients are averaged.
        scaler: of the loss, if it is scaled.
        process_group: as of `ddp_hook`.
        timeout_s: as of `ddp_hook`.
        optimizers: those whose momentum may move into the memory.
        advice: for a warning about an SGD whose momentum works against the memory.

    Raises:
        ConfigError: as of `ddp_hook`.
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
    collective = TorchCollective(group, timeout_s, come_s=SOON_S)  # DDP has met just now
    exchange = make_exchange(config, collective, parameters, layout, moved.decay(parameters))
    moved.take()
    release(optimizers)
    damp(damped, exchange.meter)
    HOOKS.add(ddp, parameters.values())
    watch = None if moved else MomentumWatch(config, exchange.rank, parameters.values(), advice)
    return exchange, BucketHook(exchange, scaler, layout, watch).average


def caps_of(ddp: DistributedDataParallel) -> str:
    """Returns the sizes of DDP's buckets in MiB; equal sizes divide gradients alike."""
    caps = [ddp.bucket_bytes_cap, *getattr(ddp, "bucket_bytes_cap_list", [])]
    return ", ".join(f"{cap / 2**20:g}" for cap in caps[len(caps) > 1 :])


def averaged_by(ddp: DistributedDataParallel) -> dict[str, Tensor]:
    """Returns the parameters whose gradients DDP averages, by name."""
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
        """Begins to average a bucket; the future has its buffer, with the average in it."""
        check_bucket(bucket)
        check_state(state is self._exchange)
        if self._scaler is not None and state.idle:
            self._scale = self._scaler.get_scale()
        buffer = bucket.buffer()
        future: Future[Tensor] = Future(devices=[] if buffer.is_cpu else [buffer.device])
        chunk = chunk_of(bucket, buffer, state)
        whole = partial(future.set_result, buffer)
        for one in self._layout.submissions(chunk, bucket.is_last(), whole):
            state.submit(one.chunk, self._scale, one.last, one.done)
        finish_with_backward(state)
        return future


def check_bucket(bucket: object) -> None:
    """Raises ConfigError for what torch.compile's Python reducer hands over."""
    if isinstance(bucket, tuple):
        raise ConfigError(
            "torch.compile's Python reducer does not say which parameters a bucket has: set "
            "torch._dynamo.config.optimize_ddp to True or False, not 'python_reducer'"
        )


def check_state(own: bool) -> None:
    """Raises ConfigError where a hook was registered with a state that is not its own."""
    if not own:
        raise ConfigError(
            "register_comm_hook was given the state or the hook of another model: each "
            "DistributedDataParallel takes both of what ddp_hook returned for it, such as "
            "ddp.register_comm_hook(*atomo.ddp_hook(ddp, code))"
        )


def chunk_of(bucket: GradBucket, buffer: Tensor, state: Exchange) -> Chunk:
    """Returns views of the gradients in a bucket of DDP's."""
    if buffer.is_sparse:
        raise ConfigError("sparse gradients are not served: use an Embedding with sparse=False")
    gradients, start = {}, buffer.storage_offset()
    for parameter in bucket.parameters():
        stride = stride_in(parameter)
        view = buffer.as_strided(parameter.shape, stride, start)
        check_state(parameter in state.names)
        gradients[state.names[parameter]] = view
        start += parameter.numel()
    return Chunk(bucket.index(), gradients, buffer)


def stride_in(parameter: Tensor) -> tuple[int, ...]:
    """Returns the strides of a gradient in DDP: those of the parameter, unless that has gaps."""
    alike = torch.empty_like(parameter, device="meta").stride()
    if alike == parameter.stride():
        return alike
    return torch.empty(parameter.shape, device="meta").stride()


def finish_with_backward(state: Exchange) -> None:
    """Has the backward pass that runs wait for the averages at its end, and raise their errors.

    A future's error would come out of DDP as one of another kind.
    """
    try:
        Variable._execution_engine.queue_callback(state.finish)
    except RuntimeError:  # no backward pass runs: this rank has joined
        state.finish()
