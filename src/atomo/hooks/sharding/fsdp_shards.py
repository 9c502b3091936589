"""Layout of gradients in the flat tensor that FSDP2's reduce-scatter leaves on a rank.

FSDP2 passes the tensor to the hook without its layout. The layout is in private records of FSDP2,
which PyTorch may change; only this file reads them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, final

from jaxtyping import Float
from torch import Size, Tensor, nn
from torch.distributed.fsdp import FSDPModule

from atomo.errors import ConfigError

__all__ = ["ParameterShard", "cut_up", "sharded_modules", "shards_of"]


@final
@dataclass(frozen=True)
class ParameterShard:
    """The rows of a parameter on this rank."""

    name: str
    shape: Size
    """Shape of the rows on this rank."""
    room: int
    """Number of entries, with the padding that makes the shards of all ranks equally long."""


def sharded_modules(model: nn.Module) -> list[FSDPModule]:
    """Lists the modules on which `fully_shard` was called, without those that have no parameters.

    Raises:
        ConfigError: the parameters of a module are sharded over several meshes.
    """
    sharded: list[FSDPModule] = [
        m for m in model.modules() if isinstance(m, FSDPModule) and groups_of(m)
    ]
    if any(len(groups_of(module)) > 1 for module in sharded):
        raise ConfigError(
            "a module's parameters are sharded over several meshes (shard_placement_fn), and FSDP2 "
            "takes no hook there: give all of them one"
        )
    return sharded


def groups_of(module: FSDPModule) -> list[Any]:
    """Returns FSDP2's records of the parameters that it gathers and reduces together."""
    state = module._get_fsdp_state()
    # PyTorch 2.10 has one group or None; later versions have a list.
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:
        groups = [getattr(state, "_fsdp_param_group", None)]
    return [group for group in groups if group is not None]


def shards_of(module: FSDPModule, names: Mapping[Tensor, str]) -> list[ParameterShard]:
    """Lists the shards that the reduce-scatter of a module leaves on this rank, in order.

    Args:
        module: a module of `sharded_modules`.
        names: the names of all parameters of the model that require a gradient.

    Raises:
        ConfigError: a parameter of the module is not among them.
    """
    (group,) = groups_of(module)
    # If PyTorch has this attribute, gradients of one dtype lie together. FSDP2 sets the attribute
    # in the first forward pass.
    order = getattr(group, "_reduce_scatter_param_indices", []) or range(len(group.fsdp_params))
    records = [group.fsdp_params[index] for index in order]
    return [shard_of(record, names) for record in records if record.sharded_param.requires_grad]


def shard_of(record: Any, names: Mapping[Tensor, str]) -> ParameterShard:
    """Returns the shard of a record of FSDP2."""
    name = names.get(record.sharded_param)
    if name is None:
        raise ConfigError(
            f"a parameter of {record.sharded_size.numel()} entries on this rank has a gradient, "
            "and fsdp_hook has not seen it: call fsdp_hook when the weights are initialized, and "
            "do not change requires_grad afterwards"
        )
    room = record.padded_sharded_param_size.numel()
    return ParameterShard(name, record.sharded_size, room)


def cut_up(reduced: Float[Tensor, " n"], shards: list[ParameterShard]) -> dict[str, Tensor]:
    """Returns views of the gradients in a flat tensor, for parameters with rows on this rank.

    Raises:
        ConfigError: the tensor has another length, since some parameters have no gradient.
    """
    expected = sum(shard.room for shard in shards)
    if reduced.numel() != expected:
        raise ConfigError(
            f"the reduce-scatter left {reduced.numel()} entries of the {expected} of "
            f"{', '.join(shard.name for shard in shards)}: some had no gradient, and FSDP2 does "
            "not say which; call model.set_reduce_scatter_unused_params(True)"
        )
    return dict(places(reduced, shards))


def places(
    reduced: Float[Tensor, " n"], shards: list[ParameterShard]
) -> Iterator[tuple[str, Tensor]]:
    """Yields each gradient that has entries on this rank."""
    start = 0
    for shard in shards:
        if entries := shard.shape.numel():
            yield shard.name, reduced[start : start + entries].view(shard.shape)
        start += shard.room
