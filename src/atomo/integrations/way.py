"""How the gradients of a step are averaged: gathered in frames, summed, or by a method's rounds."""

from dataclasses import dataclass
from typing import final

from atomo.codecs import Law
from atomo.communicators.acpsgd import ACPSGD
from atomo.communicators.exchange import Compressor
from atomo.communicators.powersgd import PowerSGD
from atomo.integrations.chunk import Codecs
from atomo.integrations.encoder import Encoder
from atomo.memory import Forget

__all__ = ["Way", "way_of"]


@final
@dataclass(frozen=True)
class Way:
    """One of the ways."""

    codecs: Codecs
    encoder: Encoder
    method: PowerSGD | ACPSGD | None
    """Sums in rounds of its own what the codec stands for."""
    sums: bool
    """Whether gradients add up as they are: nothing is dropped and nothing kept."""
    adds: bool
    """Whether payloads add up: what is kept is what coding drops, whoever adds them."""


def way_of(codecs: Codecs, compressor: Compressor, method: PowerSGD | ACPSGD | None = None) -> Way:
    """How gradients with these codecs are averaged, with what this rank keeps back."""
    laws, remembers = codecs.codec.laws, type(compressor.memory) is not Forget
    sums = Law.LOSSLESS in laws and not remembers
    adds = Law.SUMMABLE in laws and method is None and not sums
    return Way(codecs, Encoder(codecs, compressor, remembers), method, sums, adds)
