"""Entry-wise ATOMO: the coordinates are the atoms, and a random draw decides which atoms are sent.

With a budget of s entries, entry c is sent with probability min(1, |c| t), t such that these add up
to s. That is the sampling of least variance for the budget, and older methods are points on its
curve: s = ||g||_1 / ||g||_2 is QSGD with one level and one bucket, s = ||g||_1 / ||g||_inf is
TernGrad without clipping.

A drawn entry counts as sign(c) / t, with one t for all: its index and a sign bit are sent.

Law: unbiased. Bits: rho (b + 1) an entry for a budget that is the share rho, with b = log2(1 / rho)
+ 1.5 for a place, and 32 more for each entry that is certain.

Wang et al., "ATOMO: Communication-efficient Learning via Atomic Sparsification", NeurIPS 2018.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float

from atomo.codecs.base import Codec, Field, Granularity, Law
from atomo.codecs.checks import check_known
from atomo.codecs.cost import DecodeCost
from atomo.codecs.flat import adding_to, flat
from atomo.codecs.spectral.sample import (
    Sample,
    draw_sample,
    read_sample,
    sample_cost,
    sample_fields,
)
from atomo.errors import ConfigError
from atomo.kernels import selection as select
from atomo.kernels.atoms import best_rate
from atomo.kernels.quantise import moments

__all__ = ["Entrywise", "atoms_for"]

MODES = ("budget", "qsgd", "terngrad")


@final
@dataclass(frozen=True)
class Entrywise(Codec[Sample]):
    """Entries drawn one by one, unbiased.

    Raises:
        ConfigError: a setting is out of range.
    """

    budget: float = 0.01
    """Expected number of entries sent: a share of all entries below 1, but one entry at least, or a
    number from 1 on. Lower => more compression."""
    mode: str = "budget"
    """"budget"; or "qsgd" or "terngrad" for the budget with which these methods are this one."""

    id: ClassVar[str] = "entrywise"
    default_payload_type: ClassVar[type[Sample]] = Sample
    default_granularity: ClassVar[Granularity] = Granularity.ENTRIES
    batch_decodes_on_gpu: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_budget(self.id, self.budget)
        check_known(self.id, "mode", self.mode, MODES)

    @property
    def laws(self) -> frozenset[Law]:
        return frozenset({Law.UNBIASED})

    def encode(self, gradient: Float[torch.Tensor, "..."], generator: torch.Generator) -> Sample:
        entries = flat(gradient, self.id)
        return draw_sample(entries, self.rate(entries), generator, self.id, len(entries))

    def rate(self, entries: Float[torch.Tensor, " n"]) -> float:
        """Returns the probability of an entry over its magnitude, for probabilities below 1."""
        if self.mode == "budget":
            return best_rate(entries, atoms_for(self.budget, len(entries)))
        largest, squares = moments(entries)
        norm = math.sqrt(squares) if self.mode == "qsgd" else largest
        if not math.isfinite(norm):
            return math.nan
        return 1 / norm if norm else math.inf

    def fields(self, shape: torch.Size) -> tuple[Field, ...]:
        return sample_fields(shape.numel())

    def cost(self, payload: Sample, shape: torch.Size) -> DecodeCost:
        return super().cost(payload, shape) + sample_cost(payload, shape.numel())

    def add_decoded(
        self, payload: Sample, out: Float[torch.Tensor, "..."], scale: float = 1.0
    ) -> None:
        self.add_all([payload], out, scale)

    def add_all(
        self, payloads: Sequence[Sample], out: Float[torch.Tensor, "..."], scale: float = 1.0
    ) -> None:
        if not payloads:
            return
        read = [read_sample(payload, out.numel(), self.id, out.numel()) for payload in payloads]
        places, values = (torch.cat(parts) for parts in zip(*read, strict=True))
        # The drawn and the certain entries of each payload: neither set has an index twice.
        counts = [count for payload in payloads for count in payload.counts.tolist()[1:]]
        with adding_to(out, self.id) as entries:
            select.add_sets(entries, places, values, counts, scale)


def check_budget(codec: str, budget: float) -> None:
    """Refuses a budget that buys nothing."""
    if not 0 < budget < math.inf:
        raise ConfigError(f"{codec}: budget must be a number of atoms above 0, got {budget}")


def atoms_for(budget: float, atoms: int) -> float:
    """Returns the expected number of atoms that a budget stands for."""
    return max(1.0, budget * atoms) if budget < 1 else budget
