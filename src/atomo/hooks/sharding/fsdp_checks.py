"""Checks for models that the hook for FSDP2 does not support."""

from collections.abc import Mapping

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor

from atomo.errors import ConfigError
from atomo.hooks.options.hook_config import HookConfig
from atomo.memory import make_memory

__all__ = ["check_config", "check_meshes", "check_no_replicas", "sharded_parameters"]


def sharded_parameters(model: nn.Module) -> dict[str, DTensor]:
    """Returns all parameters that require a gradient, by name.

    Raises:
        ConfigError: FSDP2 has not sharded all of them.
    """
    if any(isinstance(module, FullyShardedDataParallel) for module in model.modules()):
        raise ConfigError(
            "the model is wrapped in FullyShardedDataParallel (FSDP1), which is not supported: "
            "shard it with torch.distributed.fsdp.fully_shard (FSDP2)"
        )
    if not isinstance(model, FSDPModule):
        raise ConfigError(
            f"a model that fully_shard was called on is needed, not a {type(model).__name__}"
        )
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    for name, parameter in parameters.items():
        if not isinstance(parameter, DTensor):
            raise ConfigError(f"parameter {name} is not sharded: FSDP2 was told to ignore it")
    return {name: p for name, p in parameters.items() if isinstance(p, DTensor)}


def check_config(config: HookConfig) -> None:
    """Raises ConfigError for a memory that needs all shards together."""
    if make_memory(config.memory_spec).needs_norm:
        raise ConfigError(
            f"memory {config.memory_spec} clips by the norm of the whole gradient, which no rank "
            "has when its first shard is sent: clip the averaged gradient instead"
        )


def check_meshes(parameters: Mapping[str, DTensor], replicas: object) -> DeviceMesh:
    """Returns the mesh of the replicas.

    Raises:
        ConfigError: FSDP2 averages between replicas itself, or `replicas` is no mesh of replicas.
    """
    check_one_dimension(parameters)
    if not isinstance(replicas, DeviceMesh):
        raise ConfigError(
            f"replicas must be a DeviceMesh of the ranks that hold the same shard, not {replicas}: "
            "a model with one replica has no all-reduce to compress; with reduce_scatter=True and "
            "without replicas, the reduce-scatter between its shards is compressed"
        )
    if replicas.ndim != 1:
        raise ConfigError(
            f"replicas is a mesh of {replicas.ndim} dimensions: give one, such as mesh['replicate']"
        )
    for name, parameter in parameters.items():
        check_apart(name, parameter.device_mesh, replicas)
    return replicas


def check_no_replicas(parameters: Mapping[str, DTensor], replicas: object) -> DeviceMesh:
    """Returns the mesh of the ranks that share the weights.

    Raises:
        ConfigError: there are replicas, or FSDP2 averages between replicas itself.
    """
    if replicas is not None:
        raise ConfigError(
            f"reduce_scatter=True compresses between the shards of one model, and replicas is "
            f"{replicas}: leave out one of the two"
        )
    check_one_dimension(parameters)
    meshes = [parameter.device_mesh for parameter in parameters.values()]
    if any(mesh != meshes[0] for mesh in meshes):
        raise ConfigError("parameters are sharded over several meshes: give fully_shard one mesh")
    return meshes[0]


def check_one_dimension(parameters: Mapping[str, DTensor]) -> None:
    """Raises ConfigError for a parameter on a mesh of several dimensions."""
    for name, parameter in parameters.items():
        if parameter.device_mesh.ndim != 1:
            raise ConfigError(
                f"parameter {name} lies on a mesh of {parameter.device_mesh.ndim} dimensions: call "
                "fully_shard with the mesh of the shards alone, such as mesh['shard'], since with "
                "more dimensions FSDP2 averages between replicas itself, before the hook"
            )


def check_apart(name: str, shards: DeviceMesh, replicas: DeviceMesh) -> None:
    """Raises ConfigError if ranks of `replicas` have different rows of a parameter."""
    rows, same = set(ranks_of(shards)), ranks_of(replicas)
    if len(rows.intersection(same)) > 1:
        raise ConfigError(
            f"ranks {same} are to average their rows of {name}, but each of the ranks "
            f"{sorted(rows)} has other rows: replicas is the mesh that crosses the mesh of the "
            "shards, such as mesh['replicate'] of init_device_mesh(..., (hosts, 8), "
            "mesh_dim_names=('replicate', 'shard')); a model with one replica has none"
        )


def ranks_of(mesh: DeviceMesh) -> list[int]:
    """Lists the ranks of a mesh."""
    ranks: list[int] = mesh.mesh.flatten().tolist()
    return ranks
