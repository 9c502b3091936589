"""Pieces of gradients in the flat tensor that FSDP2's reduce-scatter reads.

The tensor has one row for each rank of the group, with that rank's rows of every parameter.
"""

from collections.abc import Iterator, Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Size, Tensor
from torch.distributed.tensor import DTensor, Shard

from atomo.errors import ConfigError
from atomo.exchange.reductions.reduce_scatter import piece_name
from atomo.hooks.sharding.fsdp_shards import ParameterShard

__all__ = ["cut_pieces", "dimension_of", "empty_pieces", "piece_shapes"]


def dimension_of(parameter: DTensor) -> int:
    """Returns the dimension along which a parameter is sharded."""
    (placement,) = parameter.placements
    assert isinstance(placement, Shard)  # FSDP2 has no other on one mesh
    return placement.dim


def piece_shapes(parameter: DTensor) -> list[Size]:
    """Returns the shape of each rank's piece of a parameter, as `torch.chunk` cuts it."""
    ranks, dim = parameter.device_mesh.size(), dimension_of(parameter)
    rows = parameter.shape[dim]
    most = -(-rows // ranks)
    counts = [min(most, max(0, rows - rank * most)) for rank in range(ranks)]
    return [Size((*parameter.shape[:dim], n, *parameter.shape[dim + 1 :])) for n in counts]


def empty_pieces(parameters: Mapping[str, DTensor]) -> dict[str, Tensor]:
    """Returns a tensor of each piece's shape and device, which takes no memory."""
    return {
        piece_name(name, rank): torch.zeros(1, device=parameter.to_local().device).expand(shape)
        for name, parameter in parameters.items()
        for rank, shape in enumerate(piece_shapes(parameter))
        if shape.numel()
    }


def cut_pieces(
    gradient: Float[Tensor, " n"],
    shards: Sequence[ParameterShard],
    parameters: Mapping[str, DTensor],
    ranks: int,
) -> dict[str, Tensor]:
    """Returns views of all pieces in the input of a reduce-scatter.

    Args:
        gradient: the input.
        shards: the parameters in it, in order.
        parameters: all parameters by name.
        ranks: the number of ranks of the group.

    Raises:
        ConfigError: the input has another length, since some parameters have no gradient.
    """
    expected = ranks * sum(shard.room for shard in shards)
    if gradient.numel() != expected:
        raise ConfigError(
            f"the reduce-scatter has {gradient.numel()} entries of the {expected} of "
            f"{', '.join(shard.name for shard in shards)}: some had no gradient, and FSDP2 does "
            "not say which; call model.set_reduce_scatter_unused_params(True)"
        )
    shapes = {shard.name: piece_shapes(parameters[shard.name]) for shard in shards}
    return dict(places(gradient.view(ranks, -1), shards, shapes))


def places(
    rows: Float[Tensor, "ranks n"],
    shards: Sequence[ParameterShard],
    shapes: Mapping[str, Sequence[Size]],
) -> Iterator[tuple[str, Tensor]]:
    """Yields each piece that has entries, in the order in which they lie."""
    for rank, row in enumerate(rows):
        start = 0
        for shard in shards:
            shape = shapes[shard.name][rank]
            if entries := shape.numel():
                yield piece_name(shard.name, rank), row[start : start + entries].view(shape)
            start += shard.room
