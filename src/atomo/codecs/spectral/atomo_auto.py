"""ATOMO in the basis that suits each parameter: singular vectors, coordinates or cosines.

For atoms with coefficients c, of which s are sent, the variance grows with ||c||_1^2 / s. A
spectral atom of an m x n matrix takes m + n numbers where one of the others takes one, so at equal
numbers the basis with the least of

    ||G||_* sqrt(m + n)   singular vectors
    ||G||_1               coordinates
    ||DCT(G)||_1          cosines

has the least variance. A place costs fewer bits than a number of a factor, so that where the
figures are close the other bases send fewer bytes as well.

Law: unbiased, in all three. Bits: those of the basis that was chosen.

Wang et al., "ATOMO: Communication-efficient Learning via Atomic Sparsification", NeurIPS 2018.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from jaxtyping import Float, UInt8

from atomo.codecs.base import Codec, Field, Granularity, Law
from atomo.codecs.checks import as_codec_error, check_known
from atomo.codecs.cost import DecodeCost, read_count
from atomo.codecs.flat import flat
from atomo.codecs.spectral.entrywise import Entrywise
from atomo.codecs.spectral.factors import AtomFactors
from atomo.codecs.spectral.fourier import Fourier, transform
from atomo.codecs.spectral.matricise import aligned, as_matrix, matrix_shapes
from atomo.codecs.spectral.sample import Sample
from atomo.codecs.spectral.spectrum import decompose, indicator, tall
from atomo.codecs.spectral.svd import SVD
from atomo.errors import CodecError, ConfigError

__all__ = ["Atomo"]

BASES = ("svd", "entrywise", "fourier")  # their places are on the wire


@dataclass(frozen=True)
class Choice:
    """A basis and the payload in it; the other payload has no entries at all."""

    basis: UInt8[torch.Tensor, " basis"]
    factors: AtomFactors
    sample: Sample


@final
@dataclass(frozen=True)
class Atomo(Codec[Choice]):
    """Atoms of the basis with the least expected variance for this parameter.

    Raises:
        ConfigError: a setting is out of range.
    """

    basis: str = "auto"
    """"svd", "entrywise", "fourier", or "auto" to choose by the figures above."""
    rank: int = 3
    """Expected number of spectral atoms of an m x n matrix; in the other bases as many atoms are
    sent as these have numbers, rank (m + n). Lower => more compression."""
    matricisation: str = "pairs"
    """As in `svd`; decides m and n."""
    block: int = 64
    """As in `fourier`."""

    id: ClassVar[str] = "atomo"
    default_payload_type: ClassVar[type[Choice]] = Choice
    default_granularity: ClassVar[Granularity] = Granularity.PARAMETER

    def __post_init__(self) -> None:
        super().__post_init__()
        check_known(self.id, "basis", self.basis, ("auto", *BASES))
        if self.rank < 1:
            raise ConfigError(f"atomo: rank must be >= 1, got {self.rank}")
        self.candidates(1, 1)  # they check their own settings

    @property
    def laws(self) -> frozenset[Law]:
        return frozenset({Law.UNBIASED})

    def codecs(self, shape: torch.Size) -> tuple[SVD, Entrywise, Fourier]:
        """Returns the three candidates for a parameter of `shape`, in the order of BASES."""
        return self.candidates(*matrix_shapes(shape, self.matricisation)[0])

    def candidates(self, m: int, n: int) -> tuple[SVD, Entrywise, Fourier]:
        """Returns the three candidates for a parameter that is read as an m x n matrix."""
        budget = float(self.rank * (m + n))
        spectral = SVD(self.rank, self.matricisation)
        return spectral, Entrywise(budget), Fourier(budget, self.block)

    def encode(self, gradient: Float[torch.Tensor, "..."], generator: torch.Generator) -> Choice:
        gradient = aligned(flat(gradient, self.id)).view(gradient.shape)
        with as_codec_error(self.id):
            chosen = self.choose(gradient, generator)
            payload: Any = self.codecs(gradient.shape)[chosen].encode(gradient, generator)
        basis = torch.tensor([chosen], dtype=torch.uint8)
        factors, sample = nothing()
        return Choice(basis, payload, sample) if chosen == 0 else Choice(basis, factors, payload)

    def choose(self, gradient: Float[torch.Tensor, "..."], generator: torch.Generator) -> int:
        """Returns the index in BASES of the basis to use."""
        if self.basis != "auto":
            return BASES.index(self.basis)
        entries = aligned(flat(gradient, self.id))
        shapes = matrix_shapes(gradient.shape, self.matricisation)
        matrices = [(shape, tall(as_matrix(entries, *shape))) for shape in shapes]
        figures = [
            min(indicator((shape, decompose(m, self.rank, generator))) for shape, m in matrices),
            float(entries.norm(1, dtype=torch.float64)),
            float(transform(entries, self.block).norm(1, dtype=torch.float64)),
        ]
        return figures.index(min(figures))

    def fields(self, shape: torch.Size) -> tuple[Field, ...]:
        spectral, entrywise, fourier = (codec.fields(shape) for codec in self.codecs(shape))
        # Cosines of whole blocks: never fewer than there are entries.
        del entrywise
        return Field(torch.uint8, (1,)), *spectral, *fourier

    @property
    def inner(self) -> Mapping[str, Codec[Any]]:
        # `fourier` would serve as well as `entrywise`: a sample is a sample.
        return {"factors": SVD(), "sample": Entrywise()}

    def cost(self, payload: Choice, shape: torch.Size) -> DecodeCost:
        codecs: tuple[Codec[Any], ...] = self.codecs(shape)
        chosen = read_count(payload.basis)
        if chosen >= len(codecs):
            return super().cost(payload, shape)  # refused
        return codecs[chosen].cost(payload.sample if chosen else payload.factors, shape)

    def add_decoded(
        self, payload: Choice, out: Float[torch.Tensor, "..."], scale: float = 1.0
    ) -> None:
        chosen = int(payload.basis) if len(payload.basis) == 1 else len(BASES)
        if chosen >= len(BASES):
            raise CodecError(f"atomo: basis {payload.basis.tolist()}; known are 0 to 2")
        codec: Codec[Any] = self.codecs(out.shape)[chosen]
        with as_codec_error(self.id):
            codec.add_decoded(payload.sample if chosen else payload.factors, out, scale)


def nothing() -> tuple[AtomFactors, Sample]:
    """Returns empty payloads for the bases that were not chosen."""
    counts, octets = torch.zeros(3, dtype=torch.int32), torch.zeros(0, dtype=torch.uint8)
    zero, none, empty = torch.zeros(1), torch.zeros(0), torch.zeros(0, 0)
    return AtomFactors(empty, empty), Sample(counts, octets, octets, zero, octets, none)
