"""Two gradients, in the layouts of common training loops."""

import torch
from support.draws import normal

from atomo.hooks.adapter.chunks import Chunk

__all__ = ["PARAMETERS", "apart", "padded", "row_of", "strided"]

PARAMETERS = [("a", torch.Size((20, 30))), ("b", torch.Size((30,)))]


def row_of(dtype: torch.dtype, seed: int = 1) -> Chunk:
    """Returns a chunk as DDP has it: gradients side by side in one buffer."""
    whole, gradients, start = normal(630, seed=seed).to(dtype), {}, 0
    for name, shape in PARAMETERS:
        gradients[name] = whole[start : start + shape.numel()].view(shape)
        start += shape.numel()
    return Chunk(0, gradients, whole)


def strided(chunk: Chunk) -> Chunk:
    """The first gradient lies by columns, as weights that are channels last do."""
    assert chunk.whole is not None
    across = dict(chunk.gradients) | {"a": chunk.whole.as_strided((20, 30), (1, 20))}
    return Chunk(0, across, chunk.whole)


def apart(chunk: Chunk) -> Chunk:
    """Each gradient lies by itself, as those of `wrap_optimizer` do."""
    return Chunk(0, {name: one.clone() for name, one in chunk.gradients.items()})


def padded(chunk: Chunk) -> Chunk:
    """Returns a chunk with gaps between gradients, as FSDP2 has for shards of unequal length."""
    assert chunk.whole is not None
    whole, places = chunk.whole.new_zeros(700), {"a": 0, "b": 640}
    for name, shape in PARAMETERS:
        whole[places[name] :][: shape.numel()] = chunk.gradients[name].flatten()
    gradients = {n: whole[places[n] :][: shape.numel()].view(shape) for n, shape in PARAMETERS}
    return Chunk(0, gradients, whole)
