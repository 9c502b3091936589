"""Search for large entries in a gradient: whole, with momentum, or only its present rows.

All searches find the same entries in the same order, so that a selector is the same for each.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import final

import torch
from jaxtyping import Float, Int32, Int64

from atomo.codecs.momentum import MomentumState
from atomo.codecs.rows import RowGradient
from atomo.kernels import momentum, tiles
from atomo.kernels import selection as select

__all__ = ["MomentumSearch", "RowSearch", "Search", "WholeSearch"]


class Search(ABC):
    """Search by magnitude. Abstract; subclasses are final.

    Raises, in `above` and `largest`:
        ValueError: an entry is NaN or infinity.
    """

    device: torch.device
    shape: torch.Size
    """The shape of the gradient."""

    @abstractmethod
    def __len__(self) -> int:
        """Returns the number of entries, zeros included."""

    @abstractmethod
    def above(
        self, low: int, clear: bool = False
    ) -> tuple[Int64[torch.Tensor, " k"], Float[torch.Tensor, " k"]]:
        """Returns increasing indices, and values, of the entries with magnitude bits >= `low`,
        at least 1. With `clear` these entries become zero.
        """

    @abstractmethod
    def largest(self, k: int) -> tuple[Int64[torch.Tensor, " k"], Float[torch.Tensor, " k"]]:
        """Returns the k entries of largest magnitude, or all non-zero entries if they are fewer."""

    @abstractmethod
    def largest_in_tiles(
        self, tiling: tiles.Tiling, counts: Int64[torch.Tensor, "down across"]
    ) -> tuple[Int64[torch.Tensor, " k"], Float[torch.Tensor, " k"]]:
        """Returns the entries of largest magnitude of each tile; see `kernels.tiles.largest`."""

    def by_sample(
        self,
        sample: range | Int64[torch.Tensor, " s"],
        rank: int,
        bounds: select.Bounds,
    ) -> tuple[Int64[torch.Tensor, " k"], Float[torch.Tensor, " k"]]:
        """Returns the entries that a threshold selects, adapted as in `kernels.selection.adapted`.

        Args:
            sample: increasing positions, one at least.
            rank: of the first threshold among the magnitudes of the sample, the largest is 1.
            bounds: the numbers of entries that are too few and too many.
        """
        if isinstance(sample, range):
            sample = torch.arange(sample.start, sample.stop, sample.step, device=self.device)
        low = select.kth_largest(self.magnitudes(sample), rank)[0]
        return select.adapted(self.above, max(1, low), bounds)

    @abstractmethod
    def magnitudes(self, positions: Int64[torch.Tensor, " s"]) -> Int32[torch.Tensor, " s"]:
        """Returns the bits of the magnitudes at increasing positions."""


@final
class WholeSearch(Search):
    """Search in a vector, to which the first search adds another vector."""

    def __init__(
        self,
        entries: Float[torch.Tensor, " n"],
        added: Float[torch.Tensor, " n"] | None,
        shape: torch.Size | None = None,
    ) -> None:
        self._entries, self._added = entries, added
        self.shape = entries.shape if shape is None else shape
        self.device = entries.device

    def __len__(self) -> int:
        return len(self._entries)

    def above(
        self, low: int, clear: bool = False
    ) -> tuple[Int64[torch.Tensor, " k"], Float[torch.Tensor, " k"]]:
        return select.above(self._entries, self._take(), low, clear)

    def largest(self, k: int) -> tuple[Int64[torch.Tensor, " k"], Float[torch.Tensor, " k"]]:
        return select.largest(self._entries, self._take(), k)

    def largest_in_tiles(
        self, tiling: tiles.Tiling, counts: Int64[torch.Tensor, "down across"]
    ) -> tuple[Int64[torch.Tensor, " k"], Float[torch.Tensor, " k"]]:
        return tiles.largest(self._entries, self._take(), tiling, counts)

    def by_sample(
        self,
        sample: range | Int64[torch.Tensor, " s"],
        rank: int,
        bounds: select.Bounds,
    ) -> tuple[Int64[torch.Tensor, " k"], Float[torch.Tensor, " k"]]:
        if not isinstance(sample, range):
            return super().by_sample(sample, rank, bounds)
        return select.by_sample(self._entries, self._take(), sample, rank, bounds)

    def magnitudes(self, positions: Int64[torch.Tensor, " s"]) -> Int32[torch.Tensor, " s"]:
        return select.magnitudes(self._entries, self._added, positions)

    def _take(self) -> Float[torch.Tensor, " n"] | None:
        """Returns the vector that is still to be added; the first pass adds it, later passes do
        not.
        """
        added, self._added = self._added, None
        return added


@final
class MomentumSearch(Search):
    """Search in a vector, to which the first search adds the gradient with momentum; until then
    nothing changes.
    """

    def __init__(
        self,
        entries: Float[torch.Tensor, " n"],
        gradient: Float[torch.Tensor, " n"],
        how: MomentumState,
        shape: torch.Size,
    ) -> None:
        self._entries, self._how, self.shape = entries, how, shape
        self._gradient: Float[torch.Tensor, " n"] | None = gradient
        self.device = entries.device

    def __len__(self) -> int:
        return len(self._entries)

    def above(
        self, low: int, clear: bool = False
    ) -> tuple[Int64[torch.Tensor, " k"], Float[torch.Tensor, " k"]]:
        if clear or self._gradient is None:
            return select.above(self._entries, self._grown(), low, clear)
        state, self._gradient = self._given(self._gradient), None
        return momentum.grow_above(*state, low)

    def largest(self, k: int) -> tuple[Int64[torch.Tensor, " k"], Float[torch.Tensor, " k"]]:
        return select.largest(self._entries, self._grown(), k)

    def largest_in_tiles(
        self, tiling: tiles.Tiling, counts: Int64[torch.Tensor, "down across"]
    ) -> tuple[Int64[torch.Tensor, " k"], Float[torch.Tensor, " k"]]:
        return tiles.largest(self._entries, self._grown(), tiling, counts)

    def magnitudes(self, positions: Int64[torch.Tensor, " s"]) -> Int32[torch.Tensor, " s"]:
        if self._gradient is None:
            return select.magnitudes(self._entries, None, positions)
        return momentum.magnitudes(*self._given(self._gradient), positions)

    def by_sample(
        self,
        sample: range | Int64[torch.Tensor, " s"],
        rank: int,
        bounds: select.Bounds,
    ) -> tuple[Int64[torch.Tensor, " k"], Float[torch.Tensor, " k"]]:
        if self._gradient is None or not isinstance(sample, range):
            return super().by_sample(sample, rank, bounds)
        state, self._gradient = self._given(self._gradient), None
        return momentum.grow_by_sample(*state, sample, rank, bounds)

    def _given(
        self, gradient: Float[torch.Tensor, " n"]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, float, bool]:
        """Returns the first arguments of the functions of `kernels/momentum`."""
        velocity = self._how.velocity.view(-1)
        return self._entries, velocity, gradient, self._how.factor, self._how.nesterov

    def _grown(self) -> Float[torch.Tensor, " n"] | None:
        """Returns the vector that is still to be added; the first pass adds it, later passes do
        not.
        """
        gradient, self._gradient = self._gradient, None
        if gradient is None:
            return None
        return self._how.grow(gradient.view_as(self._how.velocity)).view(-1)


@final
class RowSearch(Search):
    """Search in the present rows of a gradient; absent rows are zero, and never found."""

    def __init__(self, gradient: RowGradient) -> None:
        self._gradient, self._entries = gradient, gradient.values.view(-1)
        self.device, self.shape = gradient.values.device, gradient.shape

    def __len__(self) -> int:
        return self._gradient.numel()

    def above(
        self, low: int, clear: bool = False
    ) -> tuple[Int64[torch.Tensor, " k"], Float[torch.Tensor, " k"]]:
        indices, values = select.above(self._entries, None, low, clear)
        return self._gradient.places(indices), values

    def largest(self, k: int) -> tuple[Int64[torch.Tensor, " k"], Float[torch.Tensor, " k"]]:
        if len(self._entries) <= k:
            return self.above(1)
        indices, values = select.largest(self._entries, None, k)
        return self._gradient.places(indices), values

    def largest_in_tiles(
        self, tiling: tiles.Tiling, counts: Int64[torch.Tensor, "down across"]
    ) -> tuple[Int64[torch.Tensor, " k"], Float[torch.Tensor, " k"]]:
        # Tiles cut through present rows: the whole matrix is made.
        whole = torch.empty(self.shape, device=self.device)
        self._gradient.write_to(whole)
        return tiles.largest(whole.view(-1), None, tiling, counts)

    def magnitudes(self, positions: Int64[torch.Tensor, " s"]) -> Int32[torch.Tensor, " s"]:
        return self._gradient.at(positions.to(self.device)).abs_().view(torch.int32)
