"""Compressed gradients between the replicas of a model that FSDP2 has sharded."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, final
from weakref import WeakSet

import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from typing_extensions import Unpack

from atomo.codecs import Codec
from atomo.errors import ConfigError
from atomo.exchange.collectives.torch_distributed import TorchCollective
from atomo.hooks.adapter.chunks import Chunk
from atomo.hooks.adapter.exchange import Exchange
from atomo.hooks.ddp import ADVICE
from atomo.hooks.optimizers.momentum_transfer import as_optimizers, move_momentum
from atomo.hooks.optimizers.momentum_watch import MomentumWatch
from atomo.hooks.optimizers.weight_decay import local
from atomo.hooks.options.checks import check_sharded
from atomo.hooks.options.hook_config import make_exchange
from atomo.hooks.options.hook_options import FSDPHookOptions, takes_options
from atomo.hooks.options.resolve import config_of
from atomo.hooks.sharding.fsdp_checks import check_config, check_meshes, sharded_parameters
from atomo.hooks.sharding.fsdp_shards import cut_up, sharded_modules, shards_of
from atomo.hooks.sharding.sharded import ShardedExchange

__all__ = ["fsdp_hook"]

hooked: Final[WeakSet[FSDPModule]] = WeakSet()
"""The modules with a hook. A module takes one."""


@takes_options(FSDPHookOptions)
def fsdp_hook(
    model: nn.Module,
    code: str | Codec[Any] | None,
    replicas: DeviceMesh,
    *,
    optimizer: Optimizer | None = None,
    **options: Unpack[FSDPHookOptions],
) -> ShardedExchange:
    """Averages the gradients of a model sharded by FSDP2 between its replicas, compressed.

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

    Args:
        model: the model on which, and on submodules of which, `fully_shard` was called with a mesh
            of one dimension. The hook averages the gradients of the parameters that require a
            gradient now.
        code: a codec, or its specification such as "svd(rank=3)". "powersgd(rank=4)" and
            "acpsgd(rank=4)" sum low-rank factors of the rows of each shard. None with `recipe`.
        replicas: a mesh of one dimension with the ranks that hold the shard of this rank, one rank
            of each replica.
        optimizer: the optimizer of the model; its momentum and weight decay move to the memory, as
            in `ddp_hook`.
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
    config = config_of(code, options)
    optimizers = as_optimizers(config, optimizer)
    parameters, modules = sharded_parameters(model), unhooked_modules(model)
    config, moved = move_momentum(config, optimizers, parameters.values())
    check_config(config)
    group = check_meshes(parameters, replicas).get_group()
    shards = {name: rows for name, p in parameters.items() if (rows := local(p)).numel()}
    collective = TorchCollective(group, options.get("timeout_s"))
    exchange = make_exchange(config, collective, shards, decay=moved.decay(parameters))
    moved.take()
    watch = None if moved else MomentumWatch(config, dist.get_rank(), parameters.values(), ADVICE)
    register(modules, parameters, BackwardSteps(exchange, watch))
    return ShardedExchange(exchange, parameters, config.memory_kind.vectors)


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
    modules: Sequence[FSDPModule], parameters: Mapping[str, DTensor], steps: "BackwardSteps"
) -> None:
    """Registers a hook on each module."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in parameters.items()}
    for number, module in enumerate(modules):
        module.set_all_reduce_hook(ModuleHook(steps, module, number, names).average)
        hooked.add(module)


@final
class ModuleHook:
    """The hook of one module."""

    def __init__(
        self, steps: "BackwardSteps", module: FSDPModule, number: int, names: Mapping[Tensor, str]
    ) -> None:
        self._steps, self._module, self._number, self._names = steps, module, number, names

    def average(self, reduced: Tensor) -> None:
        """Averages the result of a reduce-scatter in place, before FSDP2 reads it."""
        gradients = cut_up(reduced, shards_of(self._module, self._names))
        if gradients:
            self._steps.average(Chunk(self._number, gradients, reduced))


@final
class BackwardSteps:
    """Averages of all modules; the averages of one backward pass are one step."""

    def __init__(self, exchange: Exchange, watch: MomentumWatch | None) -> None:
        self._exchange, self._watch, self._begun = exchange, watch, False

    def average(self, chunk: Chunk) -> None:
        """Averages one module's gradients."""
        self._begun = True
        self._exchange.submit(chunk, 1.0, False, lambda: None)
        self._exchange.finish()
        # If the inputs of a module need no gradient, FSDP2 runs its hook at the end of the pass, in
        # a callback queued before the first hook. A failed pass drops its callbacks, so that a flag
        # for "queued" could stay set: each hook queues one.
        try:
            Variable._execution_engine.queue_callback(self._end)
        except RuntimeError:  # no backward pass runs: a pipeline schedule reduces after it
            self._end()

    def _end(self) -> None:
        if self._begun:
            self._begun = False
            self._exchange.end()
