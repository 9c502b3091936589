"""The replica of a model: plain, in DistributedDataParallel, or sharded by FSDP2."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.optim import Optimizer

from atomo.errors import ConfigError
from atomo.exchange.collectives.collective import Collective
from atomo.exchange.outer.anchor import Anchor
from atomo.hooks.adapter.fragments import FragmentExchange
from atomo.hooks.gradient_owners import HOOKS, OPTIMIZERS
from atomo.hooks.local.config import LocalConfig
from atomo.hooks.local.replica import LocalReplica
from atomo.hooks.optimizer import grouped, stepped_by
from atomo.hooks.optimizers.weight_decay import local
from atomo.hooks.options.hook_config import HookConfig, make_exchange
from atomo.hooks.replicas import replicate_tensors
from atomo.hooks.sharding.fsdp_checks import check_config, check_meshes, sharded_parameters
from atomo.memory import NoMemory
from atomo.options.fragments import split_fragments

__all__ = ["ReplicaTensors", "check_shards", "make_replica", "tensors_of"]


@final
@dataclass(frozen=True)
class ReplicaTensors:
    """The tensors of a model on this rank, by name."""

    trained: Mapping[str, Tensor]
    """The parameters that are exchanged; the rows of this rank if the model is sharded."""
    buffers: Mapping[str, Tensor]
    """The buffers that have a mean: those of floating-point numbers."""
    weights: Mapping[str, Tensor]
    """All parameters and buffers."""


def tensors_of(model: nn.Module, optimizer: Optimizer) -> ReplicaTensors:
    """Returns the tensors that an optimizer trains, and those of the whole model.

    Raises:
        ConfigError: something else averages a parameter already, or the optimizer has parameters
            that are not the model's.
    """
    parameters = stepped_by(optimizer, model)
    for owners in (OPTIMIZERS, HOOKS):
        owners.check_free(parameters.values())
    trained = {name: rows for name, p in parameters.items() if (rows := local(p)).numel()}
    buffers = {n: b for n, b in model.named_buffers() if b.is_floating_point() and b.numel()}
    weights = {n: local(t) for n, t in [*model.named_parameters(), *model.named_buffers()]}
    return ReplicaTensors(trained, buffers, weights)


def make_replica(
    config: LocalConfig, ranks: Collective, model: nn.Module, optimizer: Optimizer
) -> LocalReplica:
    """Makes the replica of a model at the weights of rank 0. All ranks call it together.

    Args:
        config: how replicas take local steps.
        ranks: the replicas.
        model: the plain model, without DistributedDataParallel.
        optimizer: the inner optimizer.

    Raises:
        ConfigError: as from `local_steps`.
    """
    tensors = tensors_of(model, optimizer)
    sizes = {name: tensor.numel() for name, tensor in tensors.trained.items()}
    parts = split_fragments(sizes, config.fragments)
    config = config.for_ranks(ranks)
    exchange = fragment_exchange(config.hook, ranks, tensors, parts)
    replicate_tensors(tensors.weights.items(), ranks)
    assert config.outer is not None  # since `for_ranks`
    anchor = Anchor(tensors.trained, tensors.buffers, config.outer, late=config.rounds.late,
                    transform=config.transform)  # fmt: skip
    exact = config.is_exact(ranks) and (config.rounds.late or not config.rounds.overlap)
    return LocalReplica(
        optimizer, exchange, anchor, config.rounds, ranks, tensors.weights,
        exact=exact, sharded=isinstance(model, FSDPModule),
    )  # fmt: skip


def fragment_exchange(
    config: HookConfig, ranks: Collective, tensors: ReplicaTensors, parts: Sequence[Sequence[str]]
) -> FragmentExchange:
    """Creates the exchange of the fragments of a model. All ranks pass equal arguments.

    Raises:
        ConfigError: as from `make_exchange`.
    """
    exchange = make_exchange(config, ranks, tensors.trained)
    buckets = [
        grouped({name: tensors.trained[name] for name in names}, config.codec, config.bucket_mb)
        for names in parts
    ]
    dense = HookConfig("sgd", memory=NoMemory.id)
    averager = make_exchange(dense, ranks, tensors.buffers) if tensors.buffers else None
    return FragmentExchange(exchange, buckets, tensors.buffers, averager)


def check_shards(model: nn.Module, replicas: DeviceMesh | None, config: HookConfig) -> None:
    """Raises ConfigError if a mesh of replicas does not fit the model."""
    if replicas is not None:
        check_meshes(sharded_parameters(model), replicas)
        check_config(config)
    elif isinstance(model, FSDPModule):
        raise ConfigError(
            "the model is sharded by FSDP2: give replicas=mesh['replicate'], the ranks that hold "
            "the same shard, and call fully_shard with mesh['shard'] alone"
        )
