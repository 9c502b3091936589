"""Compressed gradients of a model that FSDP2 has sharded: between replicas, or between shards."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, final
from weakref import WeakSet

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from typing_extensions import Unpack

from atomo.codecs import Codec
from atomo.errors import ConfigError
from atomo.exchange.collectives.torch_distributed import TorchCollective
from atomo.exchange.reductions.reduce_scatter import piece_name
from atomo.hooks.adapter.chunks import Chunk
from atomo.hooks.ddp import ADVICE
from atomo.hooks.optimizers.momentum_transfer import MomentumTransfer, as_optimizers, move_momentum
from atomo.hooks.optimizers.momentum_watch import watch_momentum
from atomo.hooks.optimizers.weight_decay import Decay, local
from atomo.hooks.options.checks import check_sharded
from atomo.hooks.options.hook_config import make_exchange
from atomo.hooks.options.hook_options import FSDPHookOptions, takes_options
from atomo.hooks.options.resolve import config_of
from atomo.hooks.sharding.backward_steps import BackwardSteps
from atomo.hooks.sharding.custom_reduce_scatter import CustomReduceScatter
from atomo.hooks.sharding.fsdp_checks import (
    check_config,
    check_meshes,
    check_no_replicas,
    sharded_parameters,
)
from atomo.hooks.sharding.fsdp_pieces import empty_pieces
from atomo.hooks.sharding.fsdp_shards import cut_up, sharded_modules, shards_of
from atomo.hooks.sharding.scattered import ScatteredExchange
from atomo.hooks.sharding.sharded import ShardedExchange

__all__ = ["fsdp_hook"]

hooked: Final[WeakSet[FSDPModule]] = WeakSet()
"""The modules with a hook. A module takes one."""


@takes_options(FSDPHookOptions)
def fsdp_hook(
    model: nn.Module,
    code: str | Codec[Any] | None,
    replicas: DeviceMesh | None = None,
    *,
    optimizer: Optimizer | None = None,
    reduce_scatter: bool = False,
    **options: Unpack[FSDPHookOptions],
) -> ShardedExchange | ScatteredExchange:
    """Averages the gradients of a model sharded by FSDP2, compressed.

    Between the replicas of the model, each of which is sharded over fast links:

        mesh = init_device_mesh("cuda", (hosts, 8), mesh_dim_names=("replicate", "shard"))
        fully_shard(model, mesh=mesh["shard"])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        exchange = atomo.fsdp_hook(model, "topk", mesh["replicate"], optimizer=optimizer)

    This replaces `fully_shard(model, mesh=mesh)`, which averages between replicas with an
    uncompressed all-reduce. FSDP2 still all-gathers weights and reduce-scatters gradients among the
    ranks of one replica, which are best the ranks of one host. The hook then averages each rank's
    shard with the ranks that hold the same shard; all of them get the same bits. Codecs encode the
    rows of each parameter that the shard contains, in their own shape, and memories store these
    rows.

    Every rank must call this function after `fully_shard`, when the weights are initialized, and
    before the first forward pass. Replicas must start with the same weights. FSDP2 waits for the
    average of each module inside the backward pass, so the two do not overlap. Each backward pass
    is one step.

    Between the ranks that share one model over slow links, without replicas:

        fully_shard(model)
        exchange = atomo.fsdp_hook(model, "qsgd(bits=4)", reduce_scatter=True)

    This replaces FSDP2's reduce-scatter. Each rank encodes every rank's rows of its gradient, and
    sends them to that rank, which adds up what it decodes. FSDP2 still all-gathers uncompressed
    weights. A memory stores what a rank did not send of its whole gradient, so that it is as large
    as the whole model on each rank; codecs without a memory, such as qsgd, need no such room.

    Args:
        model: the model on which, and on submodules of which, `fully_shard` was called with a mesh
            of one dimension. The hook averages the gradients of the parameters that require a
            gradient now.
        code: a codec, or its specification such as "svd(rank=3)". "powersgd(rank=4)" and
            "acpsgd(rank=4)" sum low-rank factors of the rows of each shard. None with `recipe`.
        replicas: a mesh of one dimension with the ranks that hold the shard of this rank, one rank
            of each replica. None with `reduce_scatter`.
        optimizer: the optimizer of the model; its momentum and weight decay move to the memory, as
            in `ddp_hook`.
        reduce_scatter: True to compress between the ranks that share the weights of one model.
        options: see `HookOptions`.

    Returns:
        The exchange. It has `state_dict` and `load_state_dict` for checkpoints, and `stats` with
        bytes and seconds. `backward()` raises its errors.

    Raises:
        TypeError: the keyword of an option is unknown.
        ConfigError: an option is invalid, the memory does not suit the codec or needs the norm of
            the whole gradient, the model has a hook already or is sharded in another way (FSDP1
            included), there is only one replica, or ranks passed different arguments.
    """
    check_sharded(model, code)
    config = replace(config_of(code, options), reduce_scatter=reduce_scatter)
    optimizers = as_optimizers(config, optimizer)
    parameters, modules = sharded_parameters(model), unhooked_modules(model)
    config, moved = move_momentum(config, optimizers, parameters.values())
    check_config(config)
    shards = check_no_replicas(parameters, replicas) if reduce_scatter else None
    mesh = check_meshes(parameters, replicas) if shards is None else shards
    collective = TorchCollective(mesh.get_group(), options.get("timeout_s"))
    rows, decay = averaged_rows(parameters, moved, shards)
    exchange = make_exchange(config, collective, rows, decay=decay)
    moved.take()
    watch = watch_momentum(config, moved, dist.get_rank(), parameters.values(), ADVICE)
    steps = BackwardSteps(exchange, watch)
    if shards is None:
        register(modules, parameters, steps)
        return ShardedExchange(exchange, parameters, config.memory_kind.vectors)
    replace_reduce_scatter(modules, parameters, steps)
    return ScatteredExchange(exchange, parameters, config.memory_kind.vectors)


def averaged_rows(
    parameters: Mapping[str, DTensor], moved: MomentumTransfer, shards: DeviceMesh | None
) -> tuple[dict[str, Tensor], Decay]:
    """Returns the tensors that are averaged, by name, and their weight decay.

    Args:
        parameters: all parameters.
        moved: the settings that moved from the optimizers.
        shards: the ranks that share the weights, for a reduce-scatter; None: replicas.
    """
    if shards is None:
        rows = {name: own for name, p in parameters.items() if (own := local(p)).numel()}
        return rows, moved.decay(parameters)
    # A rank has no other weights than its own rows: it adds their decay for all ranks.
    rank = shards.get_local_rank()
    decaying = {piece_name(name, rank): parameter for name, parameter in parameters.items()}
    return empty_pieces(parameters), moved.decay(decaying, times=shards.size())


def unhooked_modules(model: nn.Module) -> list[FSDPModule]:
    """Returns the sharded modules of a model.

    Raises:
        ConfigError: a module has a hook already, which a second hook would replace.
    """
    modules = sharded_modules(model)
    if not hooked.isdisjoint(modules):
        raise ConfigError("the model, or a module of it, has an fsdp_hook already: give one")
    return modules


def register(
    modules: Sequence[FSDPModule], parameters: Mapping[str, DTensor], steps: BackwardSteps
) -> None:
    """Registers a hook on each module."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in parameters.items()}
    for number, module in enumerate(modules):
        module.set_all_reduce_hook(ModuleHook(steps, module, number, names).average)
        hooked.add(module)


def replace_reduce_scatter(
    modules: Sequence[FSDPModule], parameters: Mapping[str, DTensor], steps: BackwardSteps
) -> None:
    """Replaces the reduce-scatter of each module."""
    for number, module in enumerate(modules):
        scatter = CustomReduceScatter(steps, module, number, parameters)
        # PyTorch does not export the base class of custom reduce-scatters.
        module.set_custom_reduce_scatter(scatter)  # type: ignore[arg-type]
        hooked.add(module)


@final
class ModuleHook:
    """The hook of one module."""

    def __init__(
        self, steps: BackwardSteps, module: FSDPModule, number: int, names: Mapping[Tensor, str]
    ) -> None:
        self._steps, self._module, self._number, self._names = steps, module, number, names

    def average(self, reduced: Tensor) -> None:
        """Averages the result of a reduce-scatter in place, before FSDP2 reads it."""
        gradients = cut_up(reduced, shards_of(self._module, self._names))
        if gradients:
            self._steps.average(Chunk(self._number, gradients, reduced))
