"""Tensors by parameter name, stored in contiguous vectors, one for each bucket."""

from __future__ import annotations

from collections.abc import Mapping
from threading import Lock
from typing import final

import torch
from jaxtyping import Float

from atomo.memory.base import Layout

__all__ = ["Store"]


@final
class Store:
    """Tensors of parameters, joined into one vector at the first request for these parameters.

    A request for another group of parameters regroups them once; later steps allocate nothing.
    """

    def __init__(self) -> None:
        self._regrouping = Lock()  # several threads may request different parameters
        self._vectors: dict[tuple[str, ...], torch.Tensor] = {}
        self._parts: dict[str, torch.Tensor] = {}

    def holds(self, layout: Layout) -> bool:
        """Returns True if there is a vector for one of these parameters."""
        return any(name in self._parts for name in layout)

    def vector(self, layout: Layout, like: torch.Tensor) -> Float[torch.Tensor, " n"]:
        """Returns the vector of these parameters, for changes in place; zeros at first."""
        names = tuple(layout)
        with self._regrouping:
            if names not in self._vectors:
                self._regroup(layout, like)
            return self._vectors[names]

    def scale(self, factor: float) -> None:
        """Multiplies all tensors by a factor."""
        for part in self._parts.values():
            part.mul_(factor)

    def state_dict(self, copy: bool = True) -> dict[str, torch.Tensor]:
        """Returns all vectors by name: copies, or the vectors themselves."""
        return {name: part.clone() if copy else part for name, part in self._parts.items()}

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Replaces all tensors."""
        self._vectors = {}
        self._parts = {name: part.clone() for name, part in state.items()}

    def _regroup(self, layout: Layout, like: torch.Tensor) -> None:
        sizes = [shape.numel() for shape in layout.values()]
        # Float32 for gradients in half precision too: rounding would lose small residuals.
        dtype = torch.promote_types(like.dtype, torch.float32)
        vector = torch.zeros(sum(sizes), dtype=dtype, device=like.device)
        for (name, shape), part in zip(layout.items(), torch.split(vector, sizes), strict=True):
            if name in self._parts:
                part.copy_(self._parts[name].reshape(-1))
            self._parts[name] = part.view(shape)
        stale = [names for names in self._vectors if not layout.keys().isdisjoint(names)]
        for names in stale:
            # Its other parameters stay valid as views of it, until a request regroups them.
            del self._vectors[names]
        self._vectors[tuple(layout)] = vector
