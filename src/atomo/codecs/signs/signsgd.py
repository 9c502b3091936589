"""signSGD: the sign of each entry, on which the workers vote; and Signum, the same of averages.

An entry decodes to 1 or -1, and the aggregate is the sign of the majority of workers. Signum sends
the signs of each worker's moving average of gradients, which is a memory, so that the two codecs
differ in the memory that they name.

Law: none; a vote says nothing about magnitudes, and its direction is biased. Bits: 1 an entry.

Bernstein et al., "signSGD: Compressed Optimisation for Non-Convex Problems", ICML 2018.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float

from atomo.codecs.base import Codec, Field, Granularity, Law
from atomo.codecs.flat import adding_to, flat
from atomo.codecs.signs.payload import Signs, add_sign_payload, scale_of, sign_fields
from atomo.errors import CodecError
from atomo.kernels import sign

__all__ = ["SignSGD", "Signum"]


@dataclass(frozen=True)
class Voting(Codec[Signs]):
    """The shared part of SignSGD and Signum: each worker votes on the sign of each entry."""

    default_payload_type: ClassVar[type[Signs]] = Signs
    default_granularity: ClassVar[Granularity] = Granularity.ENTRIES
    votes: ClassVar[bool] = True
    batch_decodes_on_gpu: ClassVar[bool] = True
    accepts_half: ClassVar[bool] = True

    @property
    def laws(self) -> frozenset[Law]:
        """None: a vote says nothing about magnitudes, and its direction is biased."""
        return frozenset()

    def encode(self, gradient: Float[torch.Tensor, "..."], generator: torch.Generator) -> Signs:
        del generator  # deterministic
        words, largest = sign.pack_signs(flat(gradient, self.id))
        if not math.isfinite(largest):
            raise CodecError(f"{self.id}: the gradient holds {largest}, which has no sign to send")
        return Signs(words, torch.tensor([float(largest > 0)]))

    def fields(self, shape: torch.Size) -> tuple[Field, ...]:
        return sign_fields(shape)

    def add_decoded(
        self, payload: Signs, out: Float[torch.Tensor, "..."], scale: float = 1.0
    ) -> None:
        self.add_all([payload], out, scale)

    def add_all(
        self, payloads: Sequence[Signs], out: Float[torch.Tensor, "..."], scale: float = 1.0
    ) -> None:
        scales = [scale_of(payload, self.id) for payload in payloads]
        for payload_scale in scales:
            if payload_scale not in (0.0, 1.0):
                raise CodecError(f"{self.id}: scale {payload_scale}; 0 or 1 is expected")
        with adding_to(out, self.id) as entries:
            add_sign_payload(payloads, [scale * payload_scale for payload_scale in scales], entries)

    def finish(self, mean: Float[torch.Tensor, "..."]) -> None:
        """Replaces the mean by the majority: its sign, or 0 on a tie, which rounding must not
        decide.
        """
        # A sum that is no tie is at least 1 / workers away from 0: four decimals keep it for
        # thousands of workers, and drop the rounding error of a tie.
        mean.round_(decimals=4).sign_()


@final
@dataclass(frozen=True)
class SignSGD(Voting):
    """The sign of every entry, decoded to 1 or -1; the aggregate is the majority's sign.

    0.0 votes 1 and -0.0 votes -1, but a gradient of zeros alone abstains and decodes to 0. Step
    sizes are those of Adam rather than of SGD: an update has no magnitude but the learning rate.
    """

    id: ClassVar[str] = "signsgd"
    memory: ClassVar[str | None] = "none"


@final
@dataclass(frozen=True)
class Signum(Voting):
    """`signsgd` of each worker's moving average of gradients, which its memory keeps."""

    id: ClassVar[str] = "signum"
    memory: ClassVar[str | None] = "momentum"
