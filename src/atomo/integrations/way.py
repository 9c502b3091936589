"""How the gradients of a step are averaged: gathered in frames, summed, or by a method's rounds."""

from dataclasses import dataclass, replace
from typing import final

from atomo.codecs import Law
from atomo.communicators.acpsgd import ACPSGD
from atomo.communicators.collective import Collective
from atomo.communicators.exchange import Compressor
from atomo.communicators.powersgd import PowerSGD
from atomo.integrations.chunk import Codecs
from atomo.integrations.chunk_sums import sum_chunks
from atomo.integrations.encoder import Encoder
from atomo.integrations.means import sum_factors
from atomo.integrations.sent import Sent
from atomo.integrations.sums import sum_gradients, sum_payloads
from atomo.memory import NoMemory

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
    chunked: bool
    """Whether ranks agree on what they send before they encode it."""

    @property
    def accepts_half(self) -> bool:
        """Whether what is encoded may be in half precision."""
        return self.method is None and not self.chunked

    def exchange(
        self, sent: Sent, collective: Collective, step: int, *, skips: bool
    ) -> tuple[Sent, int]:
        """What all ranks have to say of a chunk; and the bytes that this rank gave beyond what it
        had said when it was encoded.

        Raises:
            TransportError: the others' part did not arrive.
        """
        what = f"bucket {sent.bucket.number} of step {step}"
        if self.sums:
            return sent, sum_gradients(sent, collective, what)
        if self.method and sent.held:
            sum_factors(self.method, sent, sent.held, step, skips=skips)
            return sent, 0
        if self.adds:
            return sum_payloads(sent, self.encoder, collective, step), 0
        if self.chunked:
            return sum_chunks(sent, self.encoder, collective, step)
        (data,) = sent.said
        return replace(sent, said=[*collective.gather(data, what)]), 0


def way_of(codecs: Codecs, compressor: Compressor, method: PowerSGD | ACPSGD | None = None) -> Way:
    """How gradients with these codecs are averaged, with what this rank keeps back."""
    laws, remembers = codecs.codec.laws, type(compressor.memory) is not NoMemory
    sums = Law.LOSSLESS in laws and not remembers
    adds = Law.SUMMABLE in laws and method is None and not sums
    encoder = Encoder(codecs, compressor, remembers)
    return Way(codecs, encoder, method, sums, adds, codecs.chunked)
