"""Layout of gradients in the flat tensor that FSDP2's reduce-scatter leaves of a module on a rank.

FSDP2 hands that over without a word about what is in it. Its own records say so, and PyTorch makes
no promise about them: this file alone reads them.
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
    """One parameter's rows on this rank."""

    name: str
    shape: Size
    """Shape of the rows on this rank."""
    room: int
    """Entries, with the padding that makes all ranks' shards equally long."""


def sharded_modules(model: nn.Module) -> list[FSDPModule]:
    """Lists the modules that `fully_shard` was called on, if they have parameters.

    Raises:
        ConfigError: parameters of one are sharded over several meshes.
    """
    found: list[FSDPModule] = [
        m for m in model.modules() if isinstance(m, FSDPModule) and groups_of(m)
    ]
    if any(len(groups_of(module)) > 1 for module in found):
        raise ConfigError(
            "a module's parameters are sharded over several meshes (shard_placement_fn), and FSDP2 "
            "takes no hook there: give all of them one"
        )
    return found


def groups_of(module: FSDPModule) -> list[Any]:
    """Returns FSDP2's records of the parameters that are gathered and reduced together."""
    state = module._get_fsdp_state()
    # PyTorch 2.10 has one or none; later ones a list.
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:
        groups = [getattr(state, "_fsdp_param_group", None)]
    return [group for group in groups if group is not None]


def shards_of(module: FSDPModule, names: Mapping[Tensor, str]) -> list[ParameterShard]:
    """Lists the shards that a module's reduce-scatter leaves here, in order.

    Args:
        module: of `sharded_modules`.
        names: of all parameters of the model.

    Raises:
        ConfigError: one of its parameters is none of the model's that need a gradient.
    """
    (group,) = groups_of(module)
    # Where PyTorch has this, gradients of one dtype lie together; it knows once a forward pass has
    # begun.
    order = getattr(group, "_reduce_scatter_param_indices", []) or range(len(group.fsdp_params))
    records = [group.fsdp_params[index] for index in order]
    return [shard_of(one, names) for one in records if one.sharded_param.requires_grad]


def shard_of(record: Any, names: Mapping[Tensor, str]) -> ParameterShard:
    """Reads one of FSDP2's records of a parameter."""
    name = names.get(record.sharded_param)
    if name is None:
        raise ConfigError(
            f"a parameter of {record.sharded_size.numel()} entries here has a gradient, and "
            "fsdp_hook has not seen it: call that when the model has its weights, and what needs a "
            "gradient stays as it is"
        )
    room = record.padded_sharded_param_size.numel()
    return ParameterShard(name, record.sharded_size, room)


def cut_up(reduced: Float[Tensor, " n"], shards: list[ParameterShard]) -> dict[str, Tensor]:
    """Returns views of the gradients in a flat tensor; none of parameters without rows here.

    Raises:
        ConfigError: it has not the length of all of them: some had no gradient.
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
    """Yields each gradient that has entries here."""
    start = 0
    for shard in shards:
        if entries := shard.shape.numel():
            yield shard.name, reduced[start : start + entries].view(shard.shape)
        start += shard.room
