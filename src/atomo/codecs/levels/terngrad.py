"""TernGrad: each entry rounded at random to -m, 0 or m, with one m for a layer.

With `scale=shared` all workers have the same m: their sum is m times a small integer
("scaler sharing", section 3.3 of the paper).

Law: none by default, as clipping is biased; with `clip=0` unbiased. Bits: 1.6 an entry packed, 1.2
when coded; 32 for m.

Wen et al., "TernGrad: Ternary Gradients to Reduce Communication in Distributed Deep Learning",
NIPS 2017.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from jaxtyping import Float

from atomo.codecs.base import Codec, Field, Granularity, Law
from atomo.codecs.checks import check_known, require_finite
from atomo.codecs.cost import DecodeCost
from atomo.codecs.flat import adding_to, flat
from atomo.codecs.levels.payload import (
    CODINGS,
    Levels,
    add_level_payloads,
    level_cost,
    level_fields,
    to_levels,
)
from atomo.errors import ConfigError
from atomo.kernels import quantise

__all__ = ["TernGrad"]

SCALES = ("own", "shared")
LARGEST = 2.0**128 - 2.0**104  # of float32


@final
@dataclass(frozen=True)
class TernGrad(Codec[Levels]):
    """sign(g) m with probability min(1, |g| / m), else 0; m = max|g|, or less where it clips.

    Clipping shrinks the few largest entries: much less noise for a little bias, which no residual
    should feed back, for the noise would come with it. Only with clip=0 is it unbiased.

    Raises:
        ConfigError: a setting is out of range.
    """

    clip: float = 2.5
    """Magnitudes above `clip` times the root mean square of the layer are cut to that; 0: none.
    Lower => less noise, more bias."""
    coding: str = "entropy"
    """"entropy": a Huffman code for packed levels; "packed": 1.6 bits an entry."""
    scale: str = "own"
    """"own": each worker's m is its own; "shared": the largest of all workers' at each step, which
    takes a round trip between backward pass and encoding, and adds noise to the others'."""
    given: float = 0.0
    """m itself, as it was agreed on; larger magnitudes are cut to it. 0: not given."""

    id: ClassVar[str] = "terngrad"
    default_payload_type: ClassVar[type[Levels]] = Levels
    batch_decodes_on_gpu: ClassVar[bool] = True
    default_granularity: ClassVar[Granularity] = Granularity.PARAMETER
    accepts_half: ClassVar[bool] = True
    memory: ClassVar[str | None] = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.clip < math.inf:
            raise ConfigError(f"terngrad: clip must be 0 or more, got {self.clip}")
        check_known(self.id, "coding", self.coding, CODINGS)
        check_known(self.id, "scale", self.scale, SCALES)
        if not 0 <= self.given <= LARGEST:
            raise ConfigError(f"terngrad: given must be 0 or more, of float32; got {self.given}")

    @property
    def laws(self) -> frozenset[Law]:
        return frozenset() if self.clip or self.given else frozenset({Law.UNBIASED})

    @property
    def amplifies_noise(self) -> bool:
        return True  # clipped or not

    @property
    def shares_scale(self) -> bool:
        """True if m is the same for all workers."""
        return self.scale == "shared"

    def encode(self, gradient: Float[torch.Tensor, "..."], generator: torch.Generator) -> Levels:
        values = flat(gradient, self.id)
        # Called for a given scale too: it refuses entries that are not finite.
        requested = self.requested_scale(values)
        norms = torch.full((1,), self.given or requested, device=values.device)  # filled there
        return to_levels(values, norms, len(values), quantise.GIVEN, 1, 1.0, self.coding, generator)

    def requested_scale(self, gradient: Float[torch.Tensor, "..."]) -> float:
        """Returns m: the largest magnitude after clipping."""
        values = flat(gradient, self.id)
        largest, squares = quantise.moments(values)
        require_finite(self.id, math.isfinite(squares))
        if not self.clip:
            return largest
        return min(largest, self.clip * math.sqrt(squares / len(values)))

    def with_scale(self, scale: float) -> TernGrad:
        """Returns this codec with the m that the workers agreed on."""
        return replace(self, given=scale)

    def fields(self, shape: torch.Size) -> tuple[Field, ...]:
        return level_fields(shape.numel(), 1)

    def cost(self, payload: Levels, shape: torch.Size) -> DecodeCost:
        return super().cost(payload, shape) + level_cost(payload)

    def add_decoded(
        self, payload: Levels, out: Float[torch.Tensor, "..."], scale: float = 1.0
    ) -> None:
        self.add_all([payload], out, scale)

    def add_all(
        self, payloads: Sequence[Levels], out: Float[torch.Tensor, "..."], scale: float = 1.0
    ) -> None:
        with adding_to(out, self.id) as entries:
            add_level_payloads(payloads, len(entries), 1, entries, scale)
