"""Checks for models that the hook for FSDP2 cannot serve."""

from collections.abc import Mapping

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor

from atomo.errors import ConfigError
from atomo.hooks.hook_config import HookConfig
from atomo.memory import make_memory

__all__ = ["check_config", "check_meshes", "sharded_parameters"]


def sharded_parameters(model: nn.Module) -> dict[str, DTensor]:
    """Returns all parameters that need a gradient, by name.

    Raises:
        ConfigError: FSDP2 does not hold them.
    """
    if any(isinstance(module, FullyShardedDataParallel) for module in model.modules()):
        raise ConfigError(
            "the model is wrapped in FullyShardedDataParallel (FSDP1), which is not served: shard "
            "it with torch.distributed.fsdp.fully_shard (FSDP2)"
        )
    if not isinstance(model, FSDPModule):
        raise ConfigError(
            f"a model that fully_shard was called on is needed, not a {type(model).__name__}"
        )
    found = {name: p for name, p in model.named_parameters() if p.requires_grad}
    for name, parameter in found.items():
        if not isinstance(parameter, DTensor):
            raise ConfigError(f"parameter {name} is not sharded: FSDP2 was told to ignore it")
    return {name: p for name, p in found.items() if isinstance(p, DTensor)}


def check_config(config: HookConfig) -> None:
    """Raises ConfigError for what cannot be had of single shards, one after the other."""
    if make_memory(config.memory_spec).needs_norm:
        raise ConfigError(
            f"memory {config.memory_spec} clips by the norm of the whole gradient, which no rank "
            "has when its first shard is sent: clip the averaged gradient instead"
        )


def check_meshes(parameters: Mapping[str, DTensor], replicas: object) -> DeviceMesh:
    """Returns the mesh of the replicas.

    Raises:
        ConfigError: shards are not whole rows, or averaged already; or replicas are none.
    """
    for name, parameter in parameters.items():
        if parameter.device_mesh.ndim != 1:
            raise ConfigError(
                f"parameter {name} lies on a mesh of {parameter.device_mesh.ndim} dimensions: call "
                "fully_shard with that of the shards alone, such as mesh['shard'], for with more "
                "FSDP2 averages between replicas itself, before the hook"
            )
    if not isinstance(replicas, DeviceMesh):
        raise ConfigError(
            f"replicas must be a DeviceMesh of the ranks that hold the same shard, not {replicas}: "
            "a model with one replica has no all-reduce to compress"
        )
    if replicas.ndim != 1:
        raise ConfigError(
            f"replicas is a mesh of {replicas.ndim} dimensions: give one, such as mesh['replicate']"
        )
    for name, parameter in parameters.items():
        check_apart(name, parameter.device_mesh, replicas)
    return replicas


def check_apart(name: str, shards: DeviceMesh, replicas: DeviceMesh) -> None:
    """Raises ConfigError where ranks with other rows of a parameter are said to be its replicas."""
    rows, same = set(ranks_of(shards)), ranks_of(replicas)
    if len(rows.intersection(same)) > 1:
        raise ConfigError(
            f"ranks {same} are to average the rows of {name} that they have, and ranks "
            f"{sorted(rows)} have other ones each: replicas is the mesh that crosses that of the "
            "shards, such as mesh['replicate'] of init_device_mesh(..., (hosts, 8), "
            "mesh_dim_names=('replicate', 'shard')); a model with one replica has none"
        )


def ranks_of(mesh: DeviceMesh) -> list[int]:
    """Lists the ranks of a mesh."""
    ranks: list[int] = mesh.mesh.flatten().tolist()
    return ranks
