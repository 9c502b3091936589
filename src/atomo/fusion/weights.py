"""The weights of a model as one flat tensor, in the order of its buckets.

A bucket's weights are then sent without a copy, and one optimizer step updates them all.
"""

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Size, Tensor, nn

from atomo.fusion.buckets import Bucket

__all__ = ["flatten", "named_slices", "shapes"]


def shapes(model: nn.Module) -> list[tuple[str, Size]]:
    """Returns the name and the shape of each parameter, in forward order."""
    return [(name, parameter.shape) for name, parameter in model.named_parameters()]


def flatten(model: nn.Module, buckets: Sequence[Bucket]) -> Float[Tensor, " n"]:
    """Moves the parameters into one flat tensor, of which each becomes a view."""
    parameters = dict(model.named_parameters())
    slots = [slot for bucket in buckets for slot in bucket.slots]
    flat = torch.cat([parameters[slot.name].detach().flatten() for slot in slots])
    for name, view in named_slices(flat, buckets):
        parameters[name].data = view
    return flat


def named_slices(
    flat: Float[Tensor, " n"], buckets: Sequence[Bucket]
) -> Iterator[tuple[str, Tensor]]:
    """Yields each parameter's name and its view of a flat tensor, in the parameter's shape."""
    for bucket in buckets:
        for slot in bucket.slots:
            start, stop = bucket.offset + slot.start, bucket.offset + slot.stop
            yield slot.name, flat[start:stop].view(slot.shape)
