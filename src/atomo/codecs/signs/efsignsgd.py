"""EF-signSGD: the sign of each entry, scaled by the mean magnitude of its layer.

Law: contraction, as (||g||_1 / n) sign(g) is the nearest of all multiples of sign(g) to g. Bits: 1
an entry, and 32 for each layer.

Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression Schemes", ICML
2019.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float

from atomo.codecs.base import Codec, Field, Granularity, Law
from atomo.codecs.checks import require_finite
from atomo.codecs.flat import adding_to, flat
from atomo.codecs.signs.payload import Signs, add_sign_payload, scale_of, sign_fields
from atomo.kernels import sign

__all__ = ["EFSignSGD"]


@final
@dataclass(frozen=True)
class EFSignSGD(Codec[Signs]):
    """The mean magnitude of a layer with the sign of each entry. Needs a residual memory."""

    id: ClassVar[str] = "efsignsgd"
    default_payload_type: ClassVar[type[Signs]] = Signs
    default_granularity: ClassVar[Granularity] = Granularity.PARAMETER
    suits_adam: ClassVar[bool] = True
    batch_decodes_on_gpu: ClassVar[bool] = True
    accepts_half: ClassVar[bool] = True

    @property
    def laws(self) -> frozenset[Law]:
        return frozenset({Law.CONTRACTION})

    def encode(self, gradient: Float[torch.Tensor, "..."], generator: torch.Generator) -> Signs:
        del generator  # deterministic
        return self.of(flat(gradient, self.id))

    def encode_residual(
        self,
        gradient: Float[torch.Tensor, "*s"],
        residual: Float[torch.Tensor, "*s"],
        generator: torch.Generator,
    ) -> Signs:
        if not residual.is_contiguous():
            return super().encode_residual(gradient, residual, generator)
        entries = flat(residual, self.id)
        payload = self.of(entries, flat(gradient, self.id))
        unit = float(payload.scale)
        sign.add_signs(payload.words, -unit, unit, entries)
        return payload

    def of(
        self, values: Float[torch.Tensor, " n"], added: Float[torch.Tensor, " n"] | None = None
    ) -> Signs:
        """Adds `added` to `values`, in place, and returns the payload of the sum."""
        words, positive, negative, _ = sign.add_pack_sum(values, added)
        require_finite(self.id, math.isfinite(positive - negative))
        mean = (positive - negative) / len(values)
        return Signs(words, torch.tensor([mean]))

    def fields(self, shape: torch.Size) -> tuple[Field, ...]:
        return sign_fields(shape)

    def add_decoded(
        self, payload: Signs, out: Float[torch.Tensor, "..."], scale: float = 1.0
    ) -> None:
        self.add_all([payload], out, scale)

    def add_all(
        self, payloads: Sequence[Signs], out: Float[torch.Tensor, "..."], scale: float = 1.0
    ) -> None:
        units = [scale * scale_of(payload, self.id) for payload in payloads]
        with adding_to(out, self.id) as entries:
            add_sign_payload(payloads, units, entries)
