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

from atomo.codecs import Codec
from atomo.errors import ConfigError
from atomo.hooks.adapter.chunks import Chunk
from atomo.hooks.adapter.collective import TorchCollective
from atomo.hooks.adapter.dense import DensePolicy
from atomo.hooks.adapter.exchange import Exchange
from atomo.hooks.ddp import ADVICE
from atomo.hooks.hook_config import HookConfig, make_exchange
from atomo.hooks.optimizers.momentum_transfer import given_optimizers, move_momentum
from atomo.hooks.optimizers.momentum_watch import MomentumWatch
from atomo.hooks.optimizers.weight_decay import local
from atomo.hooks.option_checks import check_sharded, check_timeout
from atomo.hooks.recipe_coding import coding
from atomo.hooks.sharding.fsdp_checks import check_config, check_meshes, sharded_parameters
from atomo.hooks.sharding.fsdp_shards import cut_up, sharded_modules, shards_of
from atomo.hooks.sharding.sharded import ShardedExchange
from atomo.memory import Memory
from atomo.wire import Compression

__all__ = ["fsdp_hook"]

hooked: Final[WeakSet[FSDPModule]] = WeakSet()
"""The modules that hand over their gradients, of which each takes one hook."""


def fsdp_hook(
    model: nn.Module,
    code: str | Codec[Any] | None,
    replicas: DeviceMesh,
    *,
    optimizer: Optimizer | None = None,
    memory: str | Memory = "auto",
    momentum: float = 0.0,
    nesterov: bool = False,
    dense_below: int = 0,
    dense_steps: int = 0,
    code_schedule: str = "",
    recipe: str = "",
    steps_per_epoch: int = 0,
    warmup_steps: int = 0,
    seed: int = 0,
    compression: Compression | None = None,
    timeout_s: float | None = None,
) -> ShardedExchange:
    """Averages the gradients of an FSDP2 model between its replicas, compressed.

        mesh = init_device_mesh("cuda", (hosts, 8), mesh_dim_names=("replicate", "shard"))
        fully_shard(model, mesh=mesh["shard"])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        exchange = atomo.fsdp_hook(model, "topk", mesh["replicate"], optimizer=optimizer)

    In the place of `fully_shard(model, mesh=mesh)`, whose all-reduce between replicas is dense. As
    there, FSDP2 gathers weights and reduce-scatters gradients among the ranks that share a replica,
    which are best those of one host. What that leaves of each rank's shard is then averaged among
    the ranks that hold the same shard, bit for bit alike on all of them. Codecs see every
    parameter's rows of that shard in their own shape; what is kept back is kept by shard.

    On every rank, once the model is sharded and its weights are there, and before the first pass;
    replicas begin with the same weights. FSDP2 waits for each module's average inside the backward
    pass, which does not go on meanwhile. A backward pass is a step.

    Args:
        model: on which, and on modules of which, `fully_shard` was called with a mesh of one
            dimension. Parameters that need a gradient are those it has now.
        code: a codec, or its specification such as "svd(rank=3)"; or "powersgd(rank=4)" or
            "acpsgd(rank=4)", which sum factors of the rows of each shard.
        replicas: the ranks that hold this one's shard, one of each replica: a mesh of one
            dimension.
        optimizer: the one that steps the model; as of `ddp_hook`.
        memory: what each rank keeps back, as of `ddp_hook`.
        momentum: as of `ddp_hook`.
        nesterov: whether that is Nesterov's.
        dense_below: parameters of fewer entries travel as float32, whatever the codec.
        dense_steps: in so many first steps all do.
        code_schedule: as of `ddp_hook`.
        recipe: as of `ddp_hook`.
        steps_per_epoch: as of `ddp_hook`.
        warmup_steps: as of `ddp_hook`.
        seed: of what codecs draw.
        compression: blosc's settings for the frames.
        timeout_s: the longest wait for another rank, seconds; None: that of the process group.

    Returns:
        The exchange, whose `state_dict` and `load_state_dict` are for checkpoints, and whose
        `stats` are bytes and seconds. `backward()` raises what goes wrong.

    Raises:
        ConfigError: a name is unknown, a memory does not suit the codec or needs the whole gradient
            first, the model has a hook already, is sharded by FSDP1 or otherwise than above, there
            are no replicas, or they do not say the same.
    """
    check_sharded(model, code)
    check_timeout(timeout_s)
    dense = DensePolicy(dense_below, dense_steps)
    coded = coding(
        code, memory, code_schedule, recipe, steps_per_epoch, warmup_steps, momentum, nesterov
    )
    config = HookConfig(
        **coded,
        seed=seed,
        compression=compression,
        dense=dense,
    )
    optimizers = given_optimizers(config, optimizer)
    parameters, modules = sharded_parameters(model), unhooked_modules(model)
    config, moved = move_momentum(config, optimizers, parameters.values())
    check_config(config)
    group = check_meshes(parameters, replicas).get_group()
    here = {name: rows for name, one in parameters.items() if (rows := local(one)).numel()}
    collective = TorchCollective(group, timeout_s)
    exchange = make_exchange(config, collective, here, decay=moved.decay(parameters))
    moved.take()
    watch = None if moved else MomentumWatch(config, dist.get_rank(), parameters.values(), ADVICE)
    register(modules, parameters, BackwardSteps(exchange, watch))
    return ShardedExchange(exchange, parameters, config.memory_kind.vectors)


def unhooked_modules(model: nn.Module) -> list[FSDPModule]:
    """Returns the sharded modules of a model.

    Raises:
        ConfigError: one has a hook, which a second one would replace.
    """
    modules = sharded_modules(model)
    if not hooked.isdisjoint(modules):
        raise ConfigError("the model, or a module of it, has an fsdp_hook already: give one")
    return modules


def register(
    modules: Sequence[FSDPModule], parameters: Mapping[str, DTensor], steps: "BackwardSteps"
) -> None:
    """Has each module hand over its gradients."""
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
        """Averages what a reduce-scatter left, in place: when this returns, FSDP2 reads it."""
        gradients = cut_up(reduced, shards_of(self._module, self._names))
        if gradients:
            self._steps.average(Chunk(self._number, gradients, reduced))


@final
class BackwardSteps:
    """The averages of all modules, of which those of one backward pass are a step."""

    def __init__(self, exchange: Exchange, watch: MomentumWatch | None) -> None:
        self._exchange, self._watch, self._begun = exchange, watch, False

    def average(self, chunk: Chunk) -> None:
        """Averages one module's gradients."""
        self._begun = True
        self._exchange.submit(chunk, 1.0, False, lambda: None)
        self._exchange.finish()
        # FSDP2 runs hooks of modules whose inputs need no gradient at the end of the pass too, in a
        # callback that it has queued before the first hook. That of a pass that failed never comes,
        # so each hook queues one.
        try:
            Variable._execution_engine.queue_callback(self._end)
        except RuntimeError:  # no backward pass runs: a pipeline's schedule reduces behind it
            self._end()

    def _end(self) -> None:
        if self._begun:
            self._begun = False
            self._exchange.end()
