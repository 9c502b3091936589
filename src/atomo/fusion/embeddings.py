"""Embeddings with row gradients: a batch uses a few rows, and autograd computes only their
gradients.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import Embedding, EmbeddingBag, Module

from atomo.codecs.rows import RowGradient
from atomo.fusion.buckets import Bucket

__all__ = ["apart", "rows_of"]


def apart(model: Module, buckets: Sequence[Bucket]) -> frozenset[str]:
    """Returns the names of the parameters with row gradients that are a part of a bucket on their
    own.

    Those are the weights of embeddings with `sparse=True`, as long as nothing else in the network
    uses the same weights.
    """
    alone = {part.slots[0].name for b in buckets for part in b.parts if len(part.slots) == 1}
    return frozenset(alone.intersection(sparse_parameters(model)))


def sparse_parameters(model: Module) -> Iterator[str]:
    """Returns the weights of sparse embeddings that no other module shares."""
    holders: dict[int, int] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            holders[id(parameter)] = holders.get(id(parameter), 0) + 1
    for path, module in model.named_modules():
        embeds = isinstance(module, (Embedding, EmbeddingBag)) and module.sparse
        if embeds and holders[id(module.weight)] == 1:
            yield f"{path}.weight" if path else "weight"


def rows_of(parameter: Tensor) -> RowGradient:
    """Returns the gradient of a parameter as rows; no rows if the loss did not depend on it."""
    gradient = parameter.grad
    if gradient is None:
        rows = torch.empty(0, dtype=torch.int64, device=parameter.device)
        return RowGradient(rows, parameter.new_empty(0, parameter.shape[1]), parameter.shape)
    if not gradient.is_sparse:  # another use of the weights than to look rows up
        rows = torch.arange(len(gradient), device=gradient.device)
        return RowGradient(rows, gradient, parameter.shape)
    # The backward pass may have summed repeated rows: each row is then there once, in order.
    rows, values = gradient._indices()[0], gradient._values()
    if len(rows) > 1 and not bool((rows[1:] > rows[:-1]).all()):
        gradient = gradient.coalesce()
        rows, values = gradient.indices()[0], gradient.values()
    return RowGradient(rows, values, parameter.shape)
